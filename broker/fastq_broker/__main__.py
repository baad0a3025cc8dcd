"""The command `fastq-broker`: arguments to configuration, one line when ready, a clean end on SIGINT and SIGTERM.

Rules
- Standard output carries the ready line and nothing else; the log goes to standard error.
- What is wrong with the configuration ends with code 2, what is wrong with the machine (port, directory) with 1; either
  way with one line that says what, and never with a traceback.
- Only what a start needs is imported, once the arguments are known to be good.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .broker import Broker
    from .config import BrokerConfig
    from .config_keys import Value
    from .metrics_http import MetricsServer

EXIT_OK = 0
EXIT_CANNOT_START = 1
EXIT_UNCLEAN = 1
EXIT_BAD_CONFIG = 2

GC_THRESHOLD = 50_000
"""Allocations between collections: requests make no cycles, so frequent searches for some are wasted."""

_EXAMPLE = """example:
  fastq-broker --data-dir ./data --listen 127.0.0.1:9092
  fastq-broker --config server.properties --set log.retention.hours=48
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until a signal ends it; answers the exit code."""
    started = time.perf_counter()
    parsed = _parser().parse_args(arguments)
    _configure_logging(parsed.log_format, parsed.log_level)
    gc.disable()  # until it is ready: loading modules makes no garbage worth the search
    from fastq.errors import FastqError

    from .config import BrokerConfig

    try:
        config = BrokerConfig.load(parsed.config, _overrides(parsed))
        if parsed.metrics_listen is not None:
            from .metrics_http import parse_address

            parse_address(parsed.metrics_listen)
    except (FastqError, ValueError) as error:
        print(f"fastq-broker: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    loop = _new_loop()
    try:
        return loop.run_until_complete(_serve(loop, config, started, parsed))
    finally:
        loop.close()


async def _serve(
    loop: asyncio.AbstractEventLoop, config: BrokerConfig, started: float, parsed: argparse.Namespace
) -> int:
    """Start, say so, wait for a signal, stop."""
    from fastq.errors import FastqError

    from .broker import Broker, StartFailed

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config, loop)
    metrics: MetricsServer | None = None
    try:
        if parsed.metrics_listen is not None:
            metrics = await _serve_metrics(broker, parsed.metrics_listen)
        await broker.start()
    except (StartFailed, FastqError) as error:
        print(f"fastq-broker: {error}", file=sys.stderr)
        await broker.close()
        return EXIT_CANNOT_START
    if parsed.control_fd is not None:
        _take_control(broker, parsed.control_fd)
    if metrics is not None:
        metrics.metrics.started = True
    addresses = ", ".join(broker.listening)
    print(f"fastq-broker ready on {addresses} in {_process_age_s(started):.2f} s", flush=True)
    gc.freeze()  # what is loaded stays: no collection looks at it again
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    gc.enable()
    await stop.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)  # a second signal ends it at once
    clean = await broker.close()
    if metrics is not None:
        metrics.close()
    return EXIT_OK if clean else EXIT_UNCLEAN


async def _serve_metrics(broker: Broker, address: str) -> MetricsServer:
    """Count requests and serve metrics; before the start, so that one can watch it. Raises StartFailed."""
    from .broker import StartFailed
    from .metrics import BrokerMetrics, MeteredRouter
    from .metrics_http import start_metrics
    from .server import ListenError

    router = MeteredRouter(broker)
    broker.router = broker.server.router = router
    try:
        return await start_metrics(broker, BrokerMetrics(broker, router), address)
    except ListenError as error:
        raise StartFailed(str(error)) from error


def _take_control(broker: Broker, descriptor: int) -> None:
    """Load the fault switches once a test sets one."""

    def first() -> None:
        broker.loop.remove_reader(descriptor)
        from .fault_switches import FaultControl

        FaultControl(broker, descriptor).readable()

    broker.loop.add_reader(descriptor, first)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastq-broker",
        description="A broker that any Kafka client can use.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="where the data is kept, made when it is not there (default: ./data)")
    add("--listen", metavar="HOST:PORT", help="address to listen on; port 0 picks a free one (default: 127.0.0.1:9092)")
    add("--advertise", metavar="HOST:PORT", help="address that clients are told, where it is another (containers, NAT)")
    add("--config", metavar="FILE", help="a TOML file, or a Kafka server.properties")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting; wins over the file; repeatable")
    add("--node-id", type=int, metavar="N", help="the node's id within its cluster (default: 1)")
    add(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus, /health/live and /health/ready there",
    )
    add("--log-format", choices=("text", "json"), default="text", help="how the log is written (default: text)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info")
    add("--control-fd", type=int, help=argparse.SUPPRESS)  # fastq.testing's fault switches
    return parser


def _overrides(parsed: argparse.Namespace) -> dict[str, Value]:
    """The settings that arguments stand for. What neither they nor a file sets gets defaults for one's own machine."""
    overrides: dict[str, Value] = {}
    if parsed.config is None:
        overrides = {"log.dirs": "data", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    for item in parsed.set:
        key, separator, value = item.partition("=")
        if not separator:
            raise ValueError(f"--set {item!r}: it takes KEY=VALUE")
        overrides[key.strip()] = value
    if parsed.data_dir is not None:
        overrides["log.dirs"] = parsed.data_dir
    if parsed.listen is not None:
        overrides["listeners"] = parsed.listen if "://" in parsed.listen else f"PLAINTEXT://{parsed.listen}"
    if parsed.advertise is not None:
        overrides["advertised.listeners"] = (
            parsed.advertise if "://" in parsed.advertise else f"PLAINTEXT://{parsed.advertise}"
        )
    if parsed.node_id is not None:
        overrides["node.id"] = parsed.node_id
    return overrides


def _configure_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds since the epoch), level, logger, message, and the error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        fields: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _process_age_s(started: float) -> float:
    """Seconds since the process began, the interpreter's own start included where the system tells."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
            started_ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
            return float(uptime.read().split()[0]) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
