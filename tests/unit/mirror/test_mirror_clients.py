"""The clients of a mirror's two sides: what threads share of them."""

from __future__ import annotations

import pytest

from fastq.errors import LeaderNotAvailable
from fastq.metadata import TopicPartition
from fastq.mirror import source_reader
from fastq.mirror.config import Side
from fastq.mirror.source_reader import SourceReader, Wanted
from fastq.mirror.target_writer import Ask, TargetWriter

NOBODY = Side("A", {"bootstrap_servers": "127.0.0.1:1"}, {}, {})


@pytest.mark.parametrize("side", ["source", "target"])
def test_leaders_are_asked_for_under_the_drivers_lock(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """A lane places partitions while another thread fetches with the same client."""
    monkeypatch.setattr(source_reader, "LEADERS_S", 0.0)
    client = SourceReader(NOBODY) if side == "source" else TargetWriter(NOBODY)
    driver, core = client.client.driver, client.client.core
    owned: list[bool] = []
    monkeypatch.setattr(core, "request_metadata_update", lambda reason: owned.append(driver.lock._is_owned()))  # type: ignore[attr-defined]
    tp = TopicPartition("t", 0)
    answer: object
    if isinstance(client, SourceReader):
        answer = client.fetch({tp: Wanted(bytes(16), 0)}, 0)[tp]
    else:
        answer = client.ask({tp: Ask(bytes(16), "A/c/t")})[tp].error
    client.close()
    assert isinstance(answer, LeaderNotAvailable)
    assert owned == [True, True], "once for the leaders that are not known, once for what was refused"
