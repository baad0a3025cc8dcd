"""What the command `fastq-broker` imports first: a broker's SIGHUP waits from here on, until there is somebody to hear of it.

Rules: a reload may come while it starts, and would end it by default. It is held back and not ignored, so that the file of settings is read
again for it. The other commands, and programs that only import the broker, are hung up as any. Nothing is imported that takes time.
"""

import os
import signal
import sys


def hold() -> None:
    """Hold SIGHUP back from now on. Main thread; threads and processes that it begins inherit that."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def release() -> None:
    """Somebody hears of SIGHUP now: one that was held back comes at once. Main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def is_broker(arguments: list[str]) -> bool:
    """Whether a command line, without the program, starts a broker or several."""
    return not arguments or arguments[0].startswith("-") or arguments[0] == "container"


def is_command(program: str) -> bool:
    """Whether a process's program is `fastq-broker`, or what `python -m fastq_broker` runs."""
    directory, name = os.path.split(program)
    return name.startswith("fastq-broker") or (name == "__main__.py" and os.path.basename(directory) == "fastq_broker")


if is_command(sys.argv[0]) and is_broker(sys.argv[1:]):
    hold()
