"""What `fastq log-dirs` tells of brokers that cannot be asked. No broker runs."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from fastq.cli import log_dirs, main
from fastq.errors import UnsupportedVersion


class Answered:
    def __init__(self, node: int) -> None:
        self._node = node

    def result(self) -> list[Any]:
        directory = {"path": f"/disk{self._node}", "is_cordoned": False, "error": None, "replicas": []}
        return [SimpleNamespace(**directory, total_bytes=None, usable_bytes=None)]


@pytest.mark.parametrize(("fenced", "code"), [([3], 1), ([], 0), (None, 0)], ids=["fenced", "all run", "older Kafka"])
def test_a_node_that_is_fenced_is_named(
    fenced: list[int] | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in the cluster, and not among the nodes that are asked: its replicas would be missing without a word."""

    def described(**_: object) -> Any:
        if fenced is None:
            raise UnsupportedVersion("version 2 is not known")
        return SimpleNamespace(fenced_nodes=[SimpleNamespace(node_id=node) for node in fenced])

    nodes = {1: SimpleNamespace(node_id=1, host="h", port=1)}
    core = SimpleNamespace(metadata=SimpleNamespace(nodes=nodes))
    admin = SimpleNamespace(
        _client=SimpleNamespace(driver=SimpleNamespace(core=core)),
        describe_log_dirs=lambda asked, **_: {node: Answered(node) for node in asked},
        describe_cluster=described,
    )
    monkeypatch.setattr(log_dirs, "opened_admin", lambda _: contextlib.nullcontext(admin))
    assert main(["log-dirs"]) == code
    told = capsys.readouterr()
    assert "/disk1" in told.out and ("node 3 is fenced" in told.err) == bool(code)
