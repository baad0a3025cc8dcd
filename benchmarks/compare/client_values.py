"""What the clients' runs send: values and keys that differ from record to record, made from a seed before the clock starts.

Rules: a pool of distinct values is gone through again and again, so that memory is bounded and still no two records in a row
share a page; all runs of a shape send the same ones, in the same order.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

LOGS = Path(__file__).resolve().parents[2] / "examples" / "data"
POOL = 200_000
KEYS = 50_000


def log_lines(count: int) -> list[bytes]:
    """Real log lines, over and over until there are `count`."""
    lines: list[bytes] = []
    for path in sorted(LOGS.glob("*.log.gz")):
        lines += gzip.decompress(path.read_bytes()).splitlines()
    return repeated(lines, count)


def repeated(pool: list[bytes], count: int) -> list[bytes]:
    return (pool * (count // len(pool) + 1))[:count]


def random_values(size: int, pool: int = POOL) -> list[bytes]:
    """Random text (base64): the Java tools read values from a file of lines."""
    source = random.Random(size)
    return [base64.b64encode(source.randbytes(size))[:size] for _ in range(pool)]


def json_documents(size: int = 1024, pool: int = 20_000) -> list[bytes]:
    """Documents as services log them, of about `size` bytes."""
    source = random.Random(size)
    words = sorted({word.decode("ascii", "ignore") for line in log_lines(3000) for word in line.split()})

    def document(number: int) -> bytes:
        fields = {"id": f"{source.getrandbits(128):032x}", "at": 1_700_000_000_000 + number, "level": "INFO"}
        fields |= {"host": f"web-{source.randrange(40)}", "took_ms": round(source.expovariate(0.1), 3), "message": ""}
        room = size - len(json.dumps(fields))
        message = ""
        while len(message) < room:
            message += source.choice(words) + " "
        return json.dumps(fields | {"message": message[: max(room, 0)]}).encode()

    return [document(number) for number in range(pool)]


def mix() -> list[bytes]:
    """A third each of real log lines, random 100 bytes and JSON of 1 KB, shuffled."""
    third = POOL // 3
    pool = log_lines(third) + random_values(100, third) + repeated(json_documents(), third)
    random.Random(7).shuffle(pool)
    return pool


SHAPES: dict[str, Callable[[], list[bytes]]] = {
    "mix": mix,
    "100 B": lambda: random_values(100),
    "log lines": lambda: log_lines(POOL),
    "10 B": lambda: random_values(10),
    "10 KB": lambda: random_values(10_000, 5_000),
}


def values(shape: str, count: int) -> list[bytes]:
    return repeated(SHAPES[shape](), count)


def keys(count: int) -> list[bytes]:
    """Keys of 8 to 20 bytes, `KEYS` distinct ones."""
    source = random.Random(3)
    return repeated([b"user-%d" % source.randrange(10 ** source.randint(3, 14)) for _ in range(KEYS)], count)
