"""The fault switches of a test's broker: what its next requests meet.

Rules: an API is named as Kafka names it ("Produce", "Heartbeat"), an error by its name or code. The broker does the faults, so
any client meets them. Switches of one API are used in the order in which they were set, each for `times` requests; with
`times=None` it stays until `clear_faults()`. They end with the process: a restarted broker has none.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from fastq.arguments import int_of, number_of, text_of
from fastq.errors import ErrorCode
from fastq.protocol.api import APIS

COMMAND_TIMEOUT_S = 10.0
SECONDS_MAX = (2**31 - 1) // 1000


class Channel:
    """The parent's end of a running process's channel: commands and their answers, a line each.

    Invariant: `_input` is what has come and belongs to no command yet. An answer has the number of its command, so that one that comes
    after its command was given up is not taken for the next one's. Thread rule: any thread.
    """

    def __init__(self, own: socket.socket, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._socket = own
        self._socket.settimeout(timeout_s)
        self._input = bytearray()
        self._number = 0
        self._lock = threading.Lock()

    def ask(self, command: dict[str, object]) -> dict[str, Any]:
        """Send one command and wait for its answer. Raises OSError, also when the process has ended."""
        with self._lock:
            self._number += 1
            self._socket.sendall(json.dumps({**command, "number": self._number}).encode() + b"\n")
            while True:
                answer: dict[str, Any] = json.loads(self._line())
                if answer.get("number") == self._number:
                    return answer

    def _line(self) -> bytes:
        while (end := self._input.find(b"\n")) < 0:
            piece = self._socket.recv(65536)
            if not piece:
                raise BrokenPipeError("it has ended")
            self._input += piece
        line = bytes(self._input[:end])
        del self._input[: end + 1]
        return line

    def close(self) -> None:
        """The process ends by it, if it runs. Idempotent."""
        self._socket.close()


class FaultSwitches:
    """The part of `Broker` that breaks things. Invariant: `_control` is the channel of the running process."""

    _control: Channel | None = None

    def fail(self, api: str, *, error: str | int, times: int | None = 1) -> None:
        """Answer with an error code: of each item where the API has codes for them, else of the whole.

        Nothing of the request is done. `error`: "NOT_LEADER_OR_FOLLOWER" or 6.
        """
        self._command("fail", api=_api_key(api), left=_times(times), code=_error_code(error))

    def delay(self, api: str, *, seconds: float, times: int | None = 1) -> None:
        """Serve the request so much later; what its connection sends after it waits as well."""
        self._command("delay", api=_api_key(api), left=_times(times), seconds=_seconds(seconds))

    def disconnect(self, api: str, *, times: int | None = 1) -> None:
        """Close the connection instead of answering; nothing of the request is done."""
        self._command("disconnect", api=_api_key(api), left=_times(times))

    def throttle(self, api: str, *, seconds: float, times: int | None = 1) -> None:
        """Answer with a throttle time, which clients are to wait out (KIP-219); Fetch gets no records with it.

        Until it is over, what comes over that connection is not served.
        """
        self._command("throttle", api=_api_key(api), left=_times(times), seconds=_seconds(seconds))

    def change_leader(self, topic: str, partition: int = 0) -> int:
        """Elect the partition's leader anew; the new leader epoch. Requests with the old one are refused (74)."""
        number = int_of(partition, "partition", 0, 2**31 - 1)
        epoch: int = self._command("change_leader", topic=text_of(topic, "a topic"), partition=number)
        return epoch

    def clear_faults(self) -> None:
        """Set all switches off."""
        self._command("clear")

    def faults_left(self) -> dict[str, list[tuple[str, int | None]]]:
        """The switches that are still set, by API: kind, and how many requests more (None: all)."""
        found: dict[str, list[list[Any]]] = self._command("left")
        return {api: [(kind, left) for kind, left in switches] for api, switches in found.items()}

    def _command(self, do: str, **details: object) -> Any:
        """Send one command and wait for its answer. RuntimeError when the broker does not run, or refuses."""
        if self._control is None:
            raise RuntimeError("the broker does not run: faults are set on a running one")
        try:
            document = self._control.ask({"do": do, **details})
        except TimeoutError as error:
            raise RuntimeError(
                f"the broker has not answered {do} within {COMMAND_TIMEOUT_S:g} s, and may still do it"
            ) from error
        except OSError as error:
            raise RuntimeError(f"the broker does not answer: {error}") from error
        if "error" in document:
            raise RuntimeError(f"the broker refuses {do}: {document['error']}")
        return document["result"]

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


def _api_key(name: str) -> int:
    for key, info in APIS.items():
        if info.name == name:
            return int(key)
    raise ValueError(f"there is no API {name!r}; Kafka's names are {', '.join(info.name for info in APIS.values())}")


def _error_code(error: str | int) -> int:
    try:
        return int(ErrorCode[error] if isinstance(error, str) else ErrorCode(int_of(error, "an error", -1)))
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"there is no error {error!r}; it is a name such as NOT_LEADER_OR_FOLLOWER, or a code"
        ) from None


def _times(times: int | None) -> int | None:
    return None if times is None else int_of(times, "times (None: all requests)", 1)


def _seconds(seconds: float) -> float:
    return number_of(seconds, "seconds", 0, SECONDS_MAX)
