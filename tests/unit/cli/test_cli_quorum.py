"""`fastq quorum`: what is told of a controller whose vote was taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastq.admin import QuorumDescription, QuorumReplica
from fastq.cli import main, quorum

NOW_MS = 1_700_000_000_000
OURS, OTHER = b"d" * 16, b"e" * 16


def replica(node: int, fetched_ms: int | None = NOW_MS, directory: bytes = OURS) -> QuorumReplica:
    return QuorumReplica(node, directory, 10, 0, fetched_ms, fetched_ms)


class Quorum:
    """Node 3 votes until it is removed; `after` is what the leader tells then."""

    def __init__(self, voters: list[QuorumReplica], observers: list[QuorumReplica]) -> None:
        self._after = self._told([replica(1), replica(2), *voters], observers)
        self._removed = False

    def _told(self, voters: list[QuorumReplica], observers: list[QuorumReplica]) -> QuorumDescription:
        return QuorumDescription(1, 5, 10, tuple(voters), tuple(observers), {})

    def describe_quorum(self) -> QuorumDescription:
        return self._after if self._removed else self._told([replica(1), replica(2), replica(3)], [])

    def remove_raft_voter(self, node: int, directory: bytes) -> None:
        assert (node, directory) == (3, OURS)
        self._removed = True


@pytest.mark.parametrize(
    ("voters", "observers", "code", "said", "complained"),
    [
        ([], [], 0, "votes no more; voters: 1, 2", ""),
        ([], [replica(3, NOW_MS - 60_000)], 0, "votes no more; voters: 1, 2", ""),
        ([], [replica(3, None)], 0, "votes no more; voters: 1, 2", ""),
        ([], [replica(4)], 0, "votes no more; voters: 1, 2", ""),
        ([], [replica(3, NOW_MS - 400)], 0, "votes no more; voters: 1, 2", "fetches still"),
        ([replica(3)], [], 1, "was removed, and votes again; voters: 1, 2, 3", "joins by itself"),
        ([replica(3, directory=OTHER)], [], 1, "was removed, and votes again; voters: 1, 2, 3", "joins by itself"),
    ],
    ids=["gone", "stopped", "never here", "another", "runs", "back", "back with another directory"],
)
def test_a_controller_that_votes_again_is_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    voters: list[QuorumReplica],
    observers: list[QuorumReplica],
    code: int,
    said: str,
    complained: str,
) -> None:
    @contextmanager
    def opened(options: object) -> Iterator[Quorum]:
        yield Quorum(voters, observers)

    monkeypatch.setattr(quorum, "opened_admin", opened)
    assert main(["quorum", "remove-controller", "3"]) == code
    told = capsys.readouterr()
    assert told.out == f"controller 3 {said}\n"
    assert complained in told.err
    assert ("controller.quorum.auto.join.enable" in told.err) == bool(complained)
    assert main(["quorum", "remove-controller", "3", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"removed": 3, "voters": [1, 2, *([3] if voters else [])]}
