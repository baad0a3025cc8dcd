"""The command `fastq-broker`: arguments to configuration, one line when ready, a clean end on SIGINT and SIGTERM.

Rules
- Standard output carries the ready line and nothing else; the log goes to standard error.
- SIGINT and SIGTERM stop it, at the start too. Once more is the same stop, but that a node among others hands over nothing more, as its
  controllers may be gone. SIGHUP reads the file of settings again (`reload`), and waits (`hang_ups`) until it is heard. The last line says
  how it ended: code 0 for a clean stop, 1 for one after which the next start recovers, also when it was stopped before it was ready.
- What is wrong with the configuration ends with code 2, what is wrong with the machine (port, directory) with 1; either
  way with one line that says what, and never with a traceback.
- Only what a start needs is imported, once the arguments are known to be good.
"""

from __future__ import annotations

from . import hang_ups

# isort: split
import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .complaints import Parser, complain, escaped, whole_number
from .exit_codes import FAILED, INTERRUPTED, OK, READER_GONE, WRONG_USAGE
from .signals import hold_signals

if TYPE_CHECKING:
    from .broker import Broker
    from .config import BrokerConfig
    from .config_keys import ConfigValue
    from .metrics_http import MetricsServer

logger = logging.getLogger("fastq_broker")

GC_THRESHOLD = 50_000
"""Allocations between collections: requests make no cycles, so frequent searches for some are wasted."""

COMMANDS = ("container", "format", "info", "random-uuid", "repair", "status", "stop")
NODES_MAX = 100
LAGS_MAX = 1_000_000

_EXAMPLE = """example:
  fastq-broker --data-dir ./data --listen 127.0.0.1:9092
  fastq-broker --config server.properties --set log.retention.hours=48
  fastq-broker --nodes 3 --data-dir ./cluster --listen 127.0.0.1:9092
                                            a cluster on this machine: its brokers at the ports 9092, 9093, 9094
  fastq-broker repair --data-dir ./data     what accepting the damage of a metadata log would cost
  fastq-broker format --cluster-id ID --standalone --config server.properties
                                            give directories their cluster before the first start; also info, random-uuid
  fastq-broker status                       which nodes run here
  fastq-broker stop --data-dir ./data       stop one of them, or all of fastq-broker --nodes, and wait until it has
  fastq-broker container                    a broker whose settings are KAFKA_* variables, as in Apache Kafka's image
  fastq-broker --check-config --config server.properties
                                            what would hold, from where, and whether the machine has what it takes
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until a signal ends it, or one of the commands; answers the exit code."""
    started = time.perf_counter()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments, started)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a command's output has what it wanted
        _leave_stdout()
        return READER_GONE
    except KeyboardInterrupt:  # before a broker, or several, take signals: nothing has begun
        return INTERRUPTED
    except OSError as error:  # what is printed cannot be written: all else is caught where it is done
        _leave_stdout()
        complain(error.strerror or error)
        return FAILED


def _leave_stdout() -> None:
    """What could not be written is not tried again when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str], started: float) -> int:
    if not hasattr(os, "pread"):
        complain(
            "a broker needs a POSIX system, Linux or macOS, and this is none (os.pread is missing): on Windows run it in "
            "WSL or in a container; the clients run as they are"
        )
        return FAILED
    if arguments[:1] == ["repair"]:
        from .repair import main as repair

        return repair(arguments[1:])
    if arguments[:1] and arguments[0] in ("format", "info", "random-uuid"):
        from .format import main as storage

        return storage(arguments)
    if arguments[:1] and arguments[0] in ("stop", "status"):
        from .stop import main as stop

        return stop(arguments)
    if arguments[:1] == ["container"]:
        from .container import main as container

        return container(arguments[1:])
    if arguments[:1] and not arguments[0].startswith("-"):
        import difflib

        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        known = (
            f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}; a broker takes options only"
        )
        complain(f"{arguments[0]!r} is no command: {known}")
        return WRONG_USAGE
    parsed = _parser().parse_args(arguments)
    _configure_logging(parsed.log_format, parsed.log_level)
    if parsed.nodes > 1 and parsed.check_config:
        complain("--check-config does not go with --nodes: it looks at the configuration of one")
        return WRONG_USAGE
    if parsed.nodes > 1:
        from .cluster.nodes import run

        return run(parsed)
    gc.disable()  # until it is ready: loading modules makes no garbage worth the search
    from fastq.errors import FastqError

    from .config import BrokerConfig

    try:
        config = BrokerConfig.load(parsed.config, _overrides(parsed), insecure_ignore=parsed.insecure_ignore)
        if parsed.metrics_listen is not None:
            from .metrics_http import parse_address

            parse_address(parsed.metrics_listen)
    except (FastqError, ValueError) as error:
        complain(error)
        return WRONG_USAGE
    if parsed.check_config:
        from .config import read_file
        from .preflight import check

        of_file = read_file(Path(parsed.config)) if parsed.config is not None else {}
        return check(config, dict.fromkeys(of_file.keys() - _overrides(parsed).keys(), parsed.config))
    for path in config.log_dirs:
        for first in ("node-1", "node-1.moving"):  # it is, or is becoming, the first of several (cluster/lone_node.py)
            if os.path.exists(os.path.join(path, first, "meta.properties")):
                complain(f"{path} holds the nodes of a cluster: give --nodes, or another --data-dir")
                return FAILED
    try:
        loop = _new_loop()
    except OSError as error:
        return _cannot_start(error)
    serving = _serve(loop, config, started, parsed)
    try:
        return loop.run_until_complete(serving)
    except OSError as error:  # the loop itself, or a module, for want of descriptors
        serving.close()
        return _cannot_start(error)
    finally:
        hold_signals(loop)
        with contextlib.suppress(RuntimeError):  # it never ran
            loop.close()


def _cannot_start(error: OSError) -> int:
    complain(f"cannot start: {error}; raise the limit of open files or processes (ulimit)")
    return FAILED


async def _serve(
    loop: asyncio.AbstractEventLoop, config: BrokerConfig, started: float, parsed: argparse.Namespace
) -> int:
    """Start, say so, wait for a signal, stop."""
    from fastq.errors import FastqError

    from . import preflight
    from .broker import Broker, StartFailed, StartStopped
    from .descriptors import raise_limit
    from .reload import Reloader
    from .service_manager import ServiceManager

    manager = ServiceManager(os.environ, os.getpid())
    broker: Broker | None = None
    reloader: Reloader | None = None
    hung_up = False

    def hang_up() -> None:
        nonlocal hung_up
        if reloader is None:
            hung_up = True
            logger.info("SIGHUP: the file of settings is read again once the broker is ready")
        elif not stop.is_set():
            manager.reloading(loop, reloader.reload)

    stop = _take_signals(loop, lambda: broker is not None and broker.hurry(), hang_up)
    if parsed.supervised:
        _watch_supervisor(loop, stop)
    try:
        broker = Broker(config, loop)
    except OSError as error:
        return _cannot_start(error)
    halted = False

    def halt(reason: str) -> None:
        """It has been said why."""
        nonlocal halted
        halted = True
        stop.set()

    broker.on_halt(halt)
    recovery = broker.logs.recovery
    machine = preflight.look(config, raise_limit())
    logger.info("%s", "; ".join(preflight.described(machine)))
    for warning in preflight.warnings(machine):
        logger.warning("%s", warning)
    manager.starting(loop, lambda: f"starting: {recovery}" if recovery.under_way else "starting")
    metrics: MetricsServer | None = None
    try:
        if parsed.metrics_listen is not None:
            metrics = await _serve_metrics(broker, parsed.metrics_listen, parsed.metrics_lag)
        await _start(broker, stop)
    except StartStopped as stopped:
        manager.close()
        logger.warning("%s", stopped)
        return FAILED
    except (StartFailed, FastqError) as error:
        manager.close()
        complain(error)
        await broker.close()  # that of the metrics may be what could not be started
        return FAILED
    if parsed.control_fd is not None:
        _take_control(broker, parsed.control_fd)
    if metrics is not None:
        metrics.metrics.started = True
    addresses = ", ".join(broker.listening)
    print(f"fastq-broker ready on {addresses} in {_process_age_s(started):.2f} s", flush=True)
    manager.ready(loop, f"ready on {addresses}")
    gc.freeze()  # what is loaded stays: no collection looks at it again
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    gc.enable()
    reloader = Reloader(broker.controller, parsed.config, _overrides(parsed), parsed.insecure_ignore)
    if hung_up:
        hang_up()
    await stop.wait()
    manager.stopping(loop)
    clean = await broker.close()
    manager.close()
    if metrics is not None:
        metrics.close()
    logger.info("stopped" if clean else "stopped, but not cleanly: the next start recovers")
    return OK if clean and not halted else FAILED


def _take_signals(
    loop: asyncio.AbstractEventLoop, hurry: Callable[[], bool], hang_up: Callable[[], None]
) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, and once more `hurry`, where it can; SIGHUP is `hang_up`. From now on no signal but SIGKILL
    ends the process by itself."""
    stop = asyncio.Event()

    def end(number: signal.Signals) -> None:
        if stop.is_set() and hurry():
            logger.warning("%s: it is stopping already, and hands over nothing more", number.name)
            return
        if stop.is_set():
            logger.warning(
                "%s: it is stopping already; SIGKILL would end it at once, and the next start recover", number.name
            )
            return
        logger.info("%s: stopping", number.name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    hang_ups.release()
    return stop


def _watch_supervisor(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop once standard input ends: who started this node is gone, and nobody would stop it."""
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if os.read(descriptor, 4096):
            return
        loop.remove_reader(descriptor)
        if not stop.is_set():
            logger.warning("the fastq-broker --nodes that started this node has ended: stopping")
            stop.set()

    loop.add_reader(descriptor, readable)


async def _start(broker: Broker, stop: asyncio.Event) -> None:
    """Start, unless it is stopped before. Raises what Broker.start does."""
    starting = broker.loop.create_task(broker.start())
    stopped = broker.loop.create_task(stop.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        broker.stop_start()
    stopped.cancel()
    await starting


async def _serve_metrics(broker: Broker, address: str, lags_max: int) -> MetricsServer:
    """Count requests and serve metrics; before the start, so that one can watch it. Raises StartFailed."""
    from .broker import StartFailed
    from .listeners import ListenError
    from .metrics import BrokerMetrics, MeteredRouter
    from .metrics_http import start_metrics

    router = MeteredRouter(broker)
    broker.router = router
    try:
        return await start_metrics(broker, BrokerMetrics(broker, router, lags_max), address)
    except ListenError as error:
        raise StartFailed(str(error)) from error


def _take_control(broker: Broker, descriptor: int) -> None:
    """Load the fault switches once a test sets one."""

    def first() -> None:
        broker.loop.remove_reader(descriptor)
        from .fault_switches import FaultControl

        FaultControl(broker, descriptor).readable()

    broker.loop.add_reader(descriptor, first)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        from fastq.net.connection import SOFTWARE_VERSION

        print(f"fastq-broker {SOFTWARE_VERSION}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastq-broker",
        description="A broker that any Kafka client can use.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action=_Version, nargs=0, help="print the version and end")
    add("--data-dir", metavar="DIR", help="where the data is kept, made when it is not there (default: ./data)")
    add("--listen", metavar="HOST:PORT", help="address to listen on; port 0 picks a free one (default: 127.0.0.1:9092)")
    add(
        "--advertise",
        metavar="HOST:PORT",
        help="address that clients are told, where it is another (containers, NAT); port 0: the one it listens on",
    )
    add("--config", metavar="FILE", help="a TOML file, or a Kafka server.properties")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting; wins over the file; repeatable")
    add(
        "--insecure-ignore",
        metavar="KEY",
        action="append",
        default=[],
        help="run without a protection that is configured and not honoured: a setting, or acls, scram, quotas, delegation.tokens "
        "in the directory's metadata; repeatable",
    )
    add("--node-id", type=whole_number, metavar="N", help="the node's id within its cluster (default: 1)")
    add(
        "--nodes",
        type=_node_count,
        metavar="N",
        default=1,
        help="run a cluster of N nodes, each a process: directories node-1 to node-N in --data-dir, ports from that of "
        "--listen on, those of three controllers behind them; --set is for all of them (default: 1, no other process)",
    )
    add(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus, /health/live and /health/ready there",
    )
    add(
        "--metrics-lag",
        type=_lag_count,
        metavar="N",
        default=2000,
        help="tell the lag of groups by partition for so many of them at most, those that lag most; 0: none (default: 2000)",
    )
    add(
        "--check-config",
        action="store_true",
        help="print what would hold and where it was set, and what the machine has for it; start nothing",
    )
    add("--log-format", choices=("text", "json"), default="text", help="how the log is written (default: text)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info")
    add("--supervised", action="store_true", help=argparse.SUPPRESS)  # standard input ends with who started this node
    add("--control-fd", type=int, help=argparse.SUPPRESS)  # fastq.testing's fault switches
    return parser


def _lag_count(text: str) -> int:
    if not text.isdecimal() or int(text) > LAGS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: it takes 0 to {LAGS_MAX}")
    return int(text)


def _node_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: it takes 1 to {NODES_MAX}")
    return int(text)


def _overrides(parsed: argparse.Namespace) -> dict[str, ConfigValue]:
    """The settings that arguments stand for. What neither they nor a file sets gets defaults for one's own machine."""
    from .config import check_bare_listen, parse_assignments, read_file

    overrides: dict[str, ConfigValue] = {}
    if parsed.config is None:
        overrides = {"log.dirs": "data", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    overrides |= parse_assignments(parsed.set)
    if parsed.data_dir is not None:
        overrides["log.dirs"] = parsed.data_dir
    if parsed.listen is not None:
        listener = _listener("--listen", parsed.listen)
        if listener != parsed.listen:
            replaced = read_file(Path(parsed.config)) if parsed.config is not None else {}
            check_bare_listen(parsed.listen, replaced | overrides)
        overrides["listeners"] = listener
    if parsed.advertise is not None:
        overrides["advertised.listeners"] = _listener("--advertise", parsed.advertise)
    if parsed.node_id is not None:
        overrides["node.id"] = parsed.node_id
    return overrides


def _listener(option: str, text: str) -> str:
    """What an option says of one address, or of several with names, as a setting has it. Raises ValueError in the option's words."""
    if "://" in text:
        return text
    from .config_keys import is_count, shown

    def is_port(digits: str) -> bool:
        return is_count(digits) and int(digits) <= 65535

    _, colon, port = text.rpartition(":")
    if not colon or not is_port(port):
        likely = f"127.0.0.1:{text if is_port(text) else 9092}"
        raise ValueError(f"{option} {shown(text)}: it takes HOST:PORT, a port of 0 to 65535, as in {option} {likely}")
    return f"PLAINTEXT://{text}"


def _configure_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _LineFormatter(logging.Formatter):
    """A message a line, whatever a client has put into a name: nobody writes lines of his own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))


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
    """uvloop's loop where there is one, else asyncio's, which does the same and takes longer."""
    try:
        import uvloop
    except ImportError as error:
        remedy = "which there is not for Windows" if sys.platform == "win32" else f"{error}: pip install uvloop"
        logger.info("the event loop is asyncio's, slower than that of uvloop (%s)", remedy)
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
