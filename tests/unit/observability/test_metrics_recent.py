"""Times of requests and the loop's idle share, of the last minute."""

from __future__ import annotations

import math
import random

import pytest
from fastq_broker.metrics import LATENCY_BUCKETS_S, ApiStats, Exposition
from fastq_broker.metrics_recent import QUANTILES, WINDOW_S, Recent, waiting_by_api


class Setting:
    def __init__(self) -> None:
        self.now_s, self.busy_s = 1000.0, 5.0
        self.stats = {0: ApiStats(), 1: ApiStats(), -1: ApiStats()}
        self.recent = Recent(LATENCY_BUCKETS_S, lambda: self.now_s, lambda: self.busy_s)

    def told(self, after_s: float = 1.0) -> dict[str, float]:
        self.now_s += after_s
        out = Exposition()
        self.recent.tell(out, self.stats, {1: 3})
        lines = (line.rsplit(" ", 1) for line in out.text().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def total(self, quantile: float, api: str = "Produce") -> str:
        return f'kafka_network_requestmetrics_totaltimems{{request="{api}",quantile="{quantile}"}}'


def test_quantiles_lie_in_the_bucket_of_the_true_ones() -> None:
    setting, source = Setting(), random.Random(7)
    times = sorted(source.lognormvariate(-5, 2) for _ in range(5000))
    for seconds in times:
        setting.stats[0].answered(seconds, 1)
    found = setting.told()
    for quantile in QUANTILES:
        true = times[math.ceil(quantile * len(times)) - 1]
        low = max((bound for bound in LATENCY_BUCKETS_S if bound < true), default=0.0)
        high = min((bound for bound in LATENCY_BUCKETS_S if bound >= true), default=LATENCY_BUCKETS_S[-1])
        assert low * 1000 <= found[setting.total(quantile)] <= high * 1000, (quantile, true)
    assert not any('request="Fetch",quantile' in name for name in found), "of which there was none"
    assert found['kafka_network_requestmetrics_totaltimems_count{request="Produce"}'] == 5000


def test_what_is_older_than_a_minute_does_not_count() -> None:
    setting = Setting()
    setting.stats[0].answered(5.0, 1)
    assert setting.told()[setting.total(0.5)] > 2500
    setting.told(WINDOW_S / 2)
    setting.stats[0].answered(0.0001, 1)
    assert setting.told(WINDOW_S / 2 - 2)[setting.total(0.999)] > 2500
    assert setting.told(WINDOW_S / 2 + 2)[setting.total(0.999)] <= 0.1
    assert setting.total(0.999) not in setting.told(WINDOW_S), "and nothing where nothing came"


def test_what_is_answered_at_once_has_not_waited() -> None:
    setting = Setting()
    stats = setting.stats[1]
    for _ in range(9):
        stats.answered(0.001, 1)
    stats.answered(0.6, 1)
    stats.late.add(0.6)
    stats.begun.add(0.1)
    stats.waited.add(0.5)
    found = setting.told()
    remote = 'kafka_network_requestmetrics_remotetimems{{request="Fetch",quantile="{}"}}'
    assert found[remote.format(0.5)] <= 0.1 and 250 <= found[remote.format(0.99)] <= 500
    assert found[remote.format(0.99).replace("remote", "local")] <= 100


def test_the_loops_idle_share_is_of_the_last_minute() -> None:
    setting = Setting()
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
    setting.busy_s += 8.0
    assert setting.told(10.0)[name] == pytest.approx(0.2)
    setting.told(WINDOW_S)
    found = setting.told(WINDOW_S)
    assert found[name] == found["kafka_network_socketserver_networkprocessoravgidle_percent"] == 1.0


def test_what_waits_is_told_by_api() -> None:
    setting = Setting()
    waiting = waiting_by_api(setting.stats, [setting.stats[1], setting.stats[1], setting.stats[0], ApiStats()])
    assert waiting == {1: 2, 0: 1}
    found = setting.told()
    name = 'kafka_server_delayedoperationpurgatory_purgatorysize{{delayedOperation="{}"}}'
    assert (found[name.format("Fetch")], found[name.format("Produce")]) == (3, 0)
