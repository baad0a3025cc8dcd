"""Latencies as figures against the slow and obvious way, and the plots made of them."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from fastq.cli.latencies import Sample, figures, histogram, over_time
from fastq.cli.plots import HEIGHT, PLAIN_BARS, Line, Panel, as_svg, as_text, round_above


def some_samples(seed: int) -> list[Sample]:
    draw = random.Random(seed)
    return [
        Sample(draw.random() * 10, draw.expovariate(100), draw.randint(1, 50))
        for _ in range(draw.choice([1, 2, 30, 900]))
    ]


@pytest.mark.parametrize("seed", range(12))
def test_figures_are_those_of_each_record_by_itself(seed: int) -> None:
    samples = some_samples(seed)
    each = sorted(sample.took_s * 1e3 for sample in samples for _ in range(sample.records))
    found = figures(samples)
    assert found["average_ms"] == pytest.approx(sum(each) / len(each), abs=0.01)
    for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p99.9_ms", 0.999)):
        within = next(value for at, value in enumerate(each, 1) if at >= share * len(each))
        assert found[name] == pytest.approx(within, abs=0.01)
    assert found["max_ms"] == pytest.approx(each[-1], abs=0.01)
    assert figures([]) == {}


@pytest.mark.parametrize("seed", range(12))
def test_no_record_is_lost_on_the_way_to_a_picture(seed: int) -> None:
    samples = some_samples(seed)
    records = sum(sample.records for sample in samples)
    bars = histogram(samples)
    assert sum(count for _, count in bars) == records
    for low, (bound, count) in zip([0.0, *(bound for bound, _ in bars)], bars, strict=False):
        assert count == sum(sample.records for sample in samples if low < sample.took_s * 1e3 <= bound)
    points = over_time(samples)
    assert sum(point.records_per_s for point in points) * points[0].at_s == pytest.approx(records)
    assert points[-1].at_s == pytest.approx(max(sample.at_s for sample in samples))
    assert over_time([]) == []


def test_bounds_of_a_histogram() -> None:
    taken = [0.00001, 0.00002, 0.0000201, 0.001, 0.0011, 0.3]
    assert histogram([Sample(0, took) for took in taken]) == [(0.01, 1), (0.02, 1), (0.05, 1), (1, 1), (2, 1), (500, 1)]


@pytest.mark.parametrize(("most", "end"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (7, 10), (4_100_000, 5_000_000)])
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert round_above(Panel("", [Line("", [None, most])])) == pytest.approx(end)


def test_a_plot_in_characters() -> None:
    text = as_text([Panel("rate", [Line("", [0, 50, 100, None])]), Panel("ms", [Line("p50", [1, 1, 1, 1])])], 2.0)
    first, second = text.split("\n\n")
    lines = first.splitlines()
    assert lines[0] == "rate" and len(lines) == HEIGHT + 3
    assert lines[1] == "100 |  █" and lines[HEIGHT] == "  0 | ██"
    assert second.startswith("ms: p50\n1 |████\n") and second.endswith("\n   0 s 2 s")
    assert as_text([Panel("rate", [Line("", [1])])], 1.0, PLAIN_BARS).isascii()


def test_a_plot_as_svg_is_well_formed_and_within_its_frame() -> None:
    panels = [Panel("rate", [Line("", [0, 5, 10])]), Panel("<ms>", [Line("p50", [1, None, 2]), Line("p99", [2, 2, 3])])]
    document = ElementTree.fromstring(as_svg("a & b", panels, 3.0))
    space = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, document.attrib["viewBox"].split())
    lines = document.findall(f"{space}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2, 3]
    for line in lines:
        for place in line.attrib["points"].split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    texts = [text.text for text in document.findall(f"{space}text")]
    assert {"a & b", "rate", "<ms>", "p50", "p99", "0 s", "3 s"} <= set(texts)
