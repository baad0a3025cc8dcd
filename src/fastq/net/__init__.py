"""Connections to brokers: one core without I/O, and two drivers that do what it says.

    config ─ core ─┬─ peers ─ connection ─ tls, sasl, requests
                   ├─ metadata_updater
                   ├─ blocking (selectors, any thread)      client ─ operations
                   └─ aio (asyncio or uvloop)

Rules of this room: only `blocking` and `aio` touch sockets, only `addresses` the resolver; the clock and the randomness are
parameters of the core. Nothing is imported here, so that `fastq.config` may use `fastq.net.addresses`.
"""
