"""Clients of mirrors' sources: each is one pull's at a time, kept for the next where it is of use to that, and closed in the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker import mirror_sources
from fastq_broker.mirror_sources import MirrorSources

from fastq.errors import FastqError, ThrottlingQuotaExceeded


class Client:
    """In the place of a SourceClient."""

    def __init__(self, *_: object) -> None:
        self.timer: Any = None
        self.may_be_kept = True
        self.closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()


def test_clients_are_lent_to_one_pull_and_kept_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Client] = []

    def make(*_: object) -> Client:
        made.append(Client())
        return made[-1]

    async def play() -> None:
        monkeypatch.setattr("fastq_broker.source_client.SourceClient", make)
        monkeypatch.setattr(mirror_sources, "KEPT_S", 0.01)
        here: Any = SimpleNamespace(client=lambda *_, **__: None)
        configs: Any = {"A": None}
        sources: Any = MirrorSources(configs, asyncio.get_running_loop(), here)
        with sources.borrowed("A") as first:
            with sources.borrowed("A") as second:
                assert first is not second
            with sources.borrowed("A") as third:
                assert third is second
                third.may_be_kept = False
            assert third.is_closed, (
                "it waits for an answer, or the source cannot be reached, or answers no more for a while"
            )
            opened = [sources.borrowed("A") for _ in range(mirror_sources.PULLS_MAX - 1)]
            for one in opened:
                one.__enter__()
            with pytest.raises(ThrottlingQuotaExceeded), sources.borrowed("A"):
                pass
            for one in opened:
                one.__exit__(None, None, None)
        assert [client.is_closed for client in made].count(True) == 1
        for client in made:  # nobody has asked for them since
            await client.closed.wait()
        with sources.borrowed("A") as last:
            sources.close()
            assert last.is_closed
        with pytest.raises(FastqError, match="this node stops"), sources.borrowed("A"):
            pass

    asyncio.run(play())
