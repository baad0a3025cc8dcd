"""Records: the page, its search and its tail, downloads; and records that are sent."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timezone
from typing import Any

from starlette.responses import Response

from fastq.admin.core import look_up_topics
from fastq.console import paths
from fastq.console.clusters import API_TIMEOUT_S
from fastq.console.copying import read_at
from fastq.console.decoding import VIEWS, Decoder, Field, Row
from fastq.console.filters import COMPARISONS, PARTS, Filter
from fastq.console.masking import masks_of
from fastq.console.pages.routes import TOPIC, Routes
from fastq.console.scan import (
    DOWNLOAD_MAX,
    DOWNLOAD_SECONDS_MAX,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    RECORDS_DEFAULT,
    RECORDS_MAX,
    STARTS,
    Plan,
    scan,
    without_leader,
)
from fastq.console.streams import Streamed, begun, event, events
from fastq.console.tail import follow
from fastq.console.users import Role
from fastq.console.visit import BadValue, Refused, Visit
from fastq.errors import ConnectionTimeout, LeaderNotAvailable
from fastq.words import counted, read_time_ms

VALUE_MAX = 1 << 20
KINDS = ("text", "base64", "null")


def plan_of(visit: Visit, *, limit_max: int = LIMIT_MAX, limit: int = LIMIT_DEFAULT) -> Plan:
    """What the form of the records' page asks for; raises BadValue."""
    start = visit.choice("from", STARTS, "latest")
    place = 0
    if start == "offset":
        place = visit.number("at")
    elif start == "time":
        place = time_ms("at", visit.text("at", 40))
    until = visit.text("until", 40).strip()
    path = visit.text("path", paths.LENGTH_MAX).strip()
    try:
        steps = paths.parse(path) if path else None
    except ValueError as error:
        raise BadValue(str(error)) from None
    return Plan(
        visit.topic,
        visit.number("partition", high=2**31 - 1) if visit.text("partition").strip() else None,
        start,
        place,
        time_ms("until", until) if until else None,
        visit.number("limit", limit, low=1, high=limit_max),
        visit.number("records", RECORDS_DEFAULT, low=1, high=RECORDS_MAX),
        read_committed=visit.flag("committed"),
        who=visit.who,
        filter=Filter(
            visit.text("text"),
            visit.flag("ignore_case"),
            visit.choice("part", PARTS, "value"),
            steps,
            visit.choice("comparison", COMPARISONS, "="),
            visit.text("value"),
        ),
    )


def time_ms(name: str, text: str) -> int:
    """Milliseconds since 1970, of a number of them or of an ISO time, which without a zone is UTC."""
    try:
        return read_time_ms(text, timezone.utc)
    except ValueError:
        raise BadValue(
            f"{name} is a time as 2026-01-31T12:00 (UTC), or milliseconds since 1970, not {text!r}"
        ) from None


def decoder_of(visit: Visit) -> Decoder:
    """How this console shows the records of the topic."""
    cluster, view = visit.cluster, visit.choice("view", VIEWS, "auto")
    registry = visit.console.registry(cluster)
    return Decoder(visit.topic, view, masks_of(visit.console.config.masks, visit.topic), registry)


async def page(visit: Visit) -> Response:
    """The form; its script opens the stream of what it asks for."""
    plan = plan_of(visit)
    decoder_of(visit)
    described = (await visit.cluster.run(look_up_topics([plan.topic])))[plan.topic].result()
    return visit.page(
        "records.html",
        topic=plan.topic,
        partitions=len(described.partitions),
        query=visit.request.query_params,
        plan=plan,
        starts=STARTS,
        views=VIEWS,
        parts=PARTS,
        comparisons=COMPARISONS,
        masked=bool(masks_of(visit.console.config.masks, plan.topic)),
    )


async def search(visit: Visit) -> Response:
    """Events: `rows`, `progress`, and `done`."""
    return events(_searched(visit, plan_of(visit), decoder_of(visit)))


async def _searched(visit: Visit, plan: Plan, decoder: Decoder) -> AsyncIterator[bytes]:
    async with aclosing(scan(visit.cluster, plan, decoder)) as found:  # type: ignore[type-var]
        async for rows, progress in found:
            visit.check_session()
            if rows:
                yield event("rows", [row.to_json() for row in rows])
            yield event("done" if progress.ended else "progress", progress.to_json())


async def tail(visit: Visit) -> Response:
    """Events `tail`: rows and counts."""
    return events(_tailed(visit, plan_of(visit), decoder_of(visit)))


async def _tailed(visit: Visit, plan: Plan, decoder: Decoder) -> AsyncIterator[bytes]:
    async with aclosing(follow(visit.cluster, plan, decoder)) as found:  # type: ignore[type-var]
        async for counts in found:
            visit.check_session()
            yield event("tail", counts)
    yield event("done", {"ended": "followed for an hour"})


# -- downloads ---------------------------------------------------------------------------------------------------------------


async def download(visit: Visit) -> Response:
    """What a search finds, as a file."""
    kind = visit.choice("format", ("jsonl", "csv"), "jsonl")
    plan = plan_of(visit, limit_max=DOWNLOAD_MAX, limit=DOWNLOAD_MAX)
    plan = replace(plan, seconds_max=DOWNLOAD_SECONDS_MAX)
    media = "text/csv; charset=utf-8" if kind == "csv" else "application/x-ndjson"
    name = "".join(char if (char.isalnum() and char.isascii()) or char in "._-" else "_" for char in plan.topic)
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    write = _csv_lines if kind == "csv" else _json_lines
    return Streamed(await begun(_downloaded(visit, plan, decoder_of(visit), write)), media, headers)


async def _downloaded(visit: Visit, plan: Plan, decoder: Decoder, write: Any) -> AsyncIterator[bytes]:
    head: bytes = write(plan.topic, None)
    async with aclosing(scan(visit.cluster, plan, decoder)) as found:  # type: ignore[type-var]
        async for rows, progress in found:
            visit.check_session()
            if progress.leaderless:  # known before the first part: nobody is to take it for the whole
                raise LeaderNotAvailable(
                    f"{without_leader(progress.leaderless)}: nothing was downloaded; choose a partition",
                    topic=plan.topic,
                )
            yield head + write(plan.topic, rows)
            head = b""
            if progress.seconds >= plan.seconds_max and progress.offsets < progress.total:
                raise RuntimeError(f"the download of {plan.topic} {progress.ended}")


def _json_lines(topic: str, rows: list[Row] | None) -> bytes:
    lines = [
        json.dumps(
            {
                "topic": topic,
                "partition": row.partition,
                "offset": row.offset,
                "timestamp_ms": row.timestamp_ms,
                "key": _told(row.key),
                "value": _told(row.value),
                "headers": [[name, _told(field)] for name, field in row.headers],
            },
            ensure_ascii=False,
        )
        for row in rows or ()
    ]
    return "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")


def _told(field: Field) -> Any:
    """Null, a text, the document of a schema; of bytes that are none of it `{"base64": "..."}`, as the commands do."""
    if field.kind in ("text", "json", "masked"):
        return field.text
    return {"base64": base64.b64encode(field.document).decode()} if field.kind == "hex" else field.document


CSV_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value", "headers")


def _csv_lines(_topic: str, rows: list[Row] | None) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    if rows is None:
        writer.writerow(CSV_COLUMNS)
    for row in rows or ():
        headers = json.dumps([[name, _told(field)] for name, field in row.headers], ensure_ascii=False)
        cells = (_cell(row.key), _cell(row.value), headers if row.headers else "")
        writer.writerow((row.partition, row.offset, row.timestamp_ms, *cells))
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _cell(field: Field) -> str:
    """A spreadsheet takes a cell that begins so for a formula: it gets a quote before it."""
    told = _told(field)
    text = told if isinstance(told, str) else "" if told is None else json.dumps(told, ensure_ascii=False)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- sending -----------------------------------------------------------------------------------------------------------------


async def produce_form(visit: Visit) -> Response:
    """An empty form, or one filled with a record, to send it again."""
    visit.check_writable()
    topic = visit.topic
    described = await visit.cluster.admin.describe_topic(topic)
    filled: dict[str, str] = {
        "key_kind": "null",
        "key": "",
        "value_kind": "text",
        "value": "",
        "headers": "",
        "partition": "",
    }
    if visit.text("offset").strip():
        filled = await _filled(visit, topic)
    return visit.page("produce.html", topic=topic, partitions=len(described.partitions), filled=filled, kinds=KINDS)


async def _filled(visit: Visit, topic: str) -> dict[str, str]:
    from fastq.metadata import TopicPartition

    if masks_of(visit.console.config.masks, topic):
        raise Refused(f"fields of {topic} are masked: a record of it cannot be edited and sent again")
    place = TopicPartition(topic, visit.number("partition", high=2**31 - 1))
    offset = visit.number("offset")
    async with visit.cluster.reader(visit.who) as consumer:
        found = await read_at(visit.cluster, consumer, place, [offset], time.monotonic() + API_TIMEOUT_S)
    if offset not in found:
        raise ConnectionTimeout(f"{place}: offset {offset:,} was not read within {API_TIMEOUT_S:.0f} s")
    record = found[offset]
    if record is None:
        raise BadValue(f"{place}: there is no record at offset {offset:,}")
    key_kind, key = _as_text(record.key)
    value_kind, value = _as_text(record.value)
    headers = [[name, _as_header(data)] for name, data in record.headers]
    return {
        "key_kind": key_kind,
        "key": key,
        "value_kind": value_kind,
        "value": value,
        "headers": json.dumps(headers, ensure_ascii=False) if headers else "",
        "partition": str(place.partition),
    }


def _as_text(data: bytes | None) -> tuple[str, str]:
    """How a form can hold bytes without changing them: it would change other line ends."""
    if data is None:
        return "null", ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    if any(char < " " and char not in "\t\n" for char in text):
        return "base64", base64.b64encode(data).decode()
    return "text", text


def _as_header(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(visit: Visit, name: str) -> bytes | None:
    kind, text = visit.choice(f"{name}_kind", KINDS, "text"), visit.text(name, VALUE_MAX)
    if kind == "null":
        if text:
            raise BadValue(f"{name} is to be null, and there is a text of it: empty it, or choose another kind")
        return None
    if kind == "text":
        return text.replace("\r\n", "\n").encode()
    return _base64(name, "".join(text.split()))


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadValue(f"{name} is no base64") from None


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """A JSON list of [name, value]: a text, null, or {"base64": "..."}."""
    if not text.strip():
        return []
    wrong = BadValue('headers are a JSON list as [["trace", "abc"], ["empty", null], ["raw", {"base64": "AAE="}]]')
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise wrong
    try:
        return _named_bytes(found, wrong)
    except UnicodeEncodeError:
        raise BadValue("headers have half of a surrogate pair, which UTF-8 has no bytes for") from None


def _named_bytes(found: list[Any], wrong: BadValue) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for name, value in found:
        if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
            data: bytes | None = _base64(f"header {name}", value["base64"])
        elif value is None or isinstance(value, str):
            data = None if value is None else value.encode()
        else:
            raise wrong
        if not isinstance(name, str):
            raise wrong
        name.encode()
        headers.append((name, data))
    return headers


async def produce(visit: Visit) -> Response:
    """Send one record and wait until it is written."""
    topic = visit.topic
    partition = visit.number("partition", high=2**31 - 1) if visit.text("partition").strip() else None
    described = await visit.cluster.admin.describe_topic(topic)  # which the producer would make, where brokers do so
    if partition is not None and partition >= len(described.partitions):
        raise BadValue(
            f"{topic} has {counted(len(described.partitions), 'partition')}, 0 is the first: there is no {partition}"
        )
    key, value = _bytes(visit, "key"), _bytes(visit, "value")
    headers = _headers(visit.text("headers", VALUE_MAX))
    sent = await visit.cluster.producer.send(topic, value, key=key, headers=headers, partition=partition)
    metadata = await sent
    where = f"{topic}-{metadata.partition} at offset {metadata.offset:,}"
    visit.audit("produce", topic=topic, partition=metadata.partition, offset=metadata.offset)
    back = visit.url("topics", topic, "records") + f"?partition={metadata.partition}&from=offset&at={metadata.offset}"
    return visit.result("Produce", [(where, None)], back)


ROUTES: Routes = [
    ("GET", TOPIC + "/records", Role.VIEWER, page),
    ("GET", TOPIC + "/records/scan", Role.VIEWER, search),
    ("GET", TOPIC + "/records/tail", Role.VIEWER, tail),
    ("GET", TOPIC + "/records/download", Role.VIEWER, download),
    ("GET", TOPIC + "/produce", Role.OPERATOR, produce_form),
    ("POST", TOPIC + "/produce", Role.OPERATOR, produce),
]
