"""Every page and every form that there is, with values that nobody means: wrong, huge, doubled, of other forms. What comes is a page or a
sentence each time, and never an error of the console's own."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served

import fastq.console
from fastq import Admin, Producer
from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.pages import ROUTES
from fastq.testing import Broker

REQUESTS = 150
FIELD = re.compile(r'visit\.(?:text|texts|number|choice|flag)\(\s*"([\w.-]+)"')
FIELDS = sorted(
    {
        name
        for path in Path(fastq.console.__file__).parent.rglob("*.py")
        for name in FIELD.findall(path.read_text(encoding="utf-8"))
    }
    | {
        "name",
        "principal",
        "host",
        "kind",
        "operation",
        "permission",
        "pattern",
        "user",
        "client-id",
        "ip",
        "user-default",
    }
)
VALUES = [
    "", " ", "0", "-1", "1", "1.5", "1_0", "1e9", "nan", "9" * 19, "9" * 25, "x", "é", "\0", "\r\n", "\ud7ff\u202e", "'\"`;--", "x" * 999,
    "<script>alert(1)</script>", "a/b", "../..", "%00%0d%0a", "x" * 5_000, "a\nb\nc", "t", "t:0:1", "t:0:1,1", "t:0:", "t:0:99999999",
    "g:t:0:1", "1,2", "__consumer_offsets", "g", "all", "earliest", "latest", "offset", "time", "shift", "2026-01-31T12:00", "0001-01-01",
    "9999-12-31T23:59:59", '[["a","b"]]', "[[1,2]]", "[" * 500, "{}", "null", "$.a[*]", "$[", "$" * 600, "=", "<", "text =", "auto", "hex",
    "base64", "json", "TOPIC", "READ", "ALLOW", "LITERAL", "User:a", "SCRAM_SHA_256", "4096", "producer_byte_rate", "retention.ms",
    "compression.gzip.level", "node", "BACKWARD",
]  # fmt: skip
TOPICS = ["t", "t", "t", "nope", "a%2fb", "%00", "..", "x" * 300, "%F0%9F%98%80", "%ff"]
NODES = ["1", "1", "2", "x", "9" * 11]


@pytest.mark.parametrize("seed", range(2))
def test_any_value_of_any_field_is_a_page_or_a_sentence(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    assert len(FIELDS) > 50
    dice = random.Random(seed)
    routes = [(method, path) for method, path, _, _ in ROUTES if not path.endswith(("/tail", "{mirror}/lag"))]
    with Broker(in_memory=True) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
            admin.create_topic("t", 2)
            for n in range(20):
                producer.send("t", b'{"a":%d}' % n)
        console = Served(ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser:
                token = browser.token("/c/test/new-topic")
                for _ in range(REQUESTS):
                    method, path = dice.choice(routes)
                    url = path.format(cluster="test", topic=dice.choice(TOPICS), node=dice.choice(NODES), mirror="m")
                    names = dice.sample(FIELDS, dice.randrange(25))
                    values: dict[str, Any] = {name: dice.choices(VALUES, k=dice.choice((1, 1, 1, 2))) for name in names}
                    if method == "GET":
                        answer = browser.get(url, params=values)
                    else:
                        answer = browser.post(url, data={**values, "token": token})
                    assert answer.status_code in (200, 303, 400, 403, 404, 409), (method, url, values, answer.text)
                    assert "<script>alert" not in answer.text, (method, url, values)
        finally:
            console.close()
    assert not [record for record in caplog.records if record.name == "fastq.console" and record.exc_info]
