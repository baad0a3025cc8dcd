"""Without a dependency: everything is imported and works, but for what needs that one, whose error names the package and pip's command.

A package is taken away by None in `sys.modules`, in a process of its own; that all are away, by Python without site-packages.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from fastq._native.records import build_batch
from fastq.compression import Codec, compress

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {
    Codec.LZ4: ("lz4", "lz4"),
    Codec.SNAPPY: ("snappy", "python-snappy"),
    Codec.ZSTD: ("zstandard", "zstandard"),
}
EXTRAS = {
    "fastavro",
    "google",
    "httpx",
    "jinja2",
    "joserfc",
    "jsonschema",
    "opentelemetry",
    "pyarrow",
    "pyspark",
    "pytest",
    "starlette",
    "uvicorn",
}
PAYLOAD = b"a line of a log, again and again\n" * 50


def run(script: str, without: tuple[str, ...] = (), *, bare: bool = False) -> Any:
    """What `script` prints as JSON, in a process that has our sources and not the modules `without`; `bare`: nor any package at all."""
    begin = f"""
import json, sys
sys.path[:0] = {[str(ROOT / part) for part in ("src", "broker", "tests", "tests/unit/native", "tests/unit/log")]!r}
sys.modules.update(dict.fromkeys({without!r}))
"""
    flags = ["-S", "-I"] if bare else ["-I"]
    done = subprocess.run([sys.executable, *flags, "-c", begin + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_module_is_imported_without_any_package() -> None:
    found = run(
        """
import importlib, pkgutil, fastq, fastq_broker
missing = {}
for package in (fastq, fastq_broker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                cause = error.__cause__ or error
                missing[module.name] = cause.name.partition(".")[0]
print(json.dumps(missing))
""",
        bare=True,
    )
    # What types need before Python 3.13 has it, which is a dependency: for checkers, and before 3.11 where a TypedDict is made.
    typed = {name for name, package in found.items() if package == "typing_extensions"}
    before_311 = {"fastq.admin.options", "fastq.client_options", "fastq.producer.options"}
    before_311 |= {"fastq.spark.foreach", "fastq.spark.query_lag"}
    assert typed <= {"fastq.consumer.options"} | (before_311 if sys.version_info < (3, 11) else set())
    assert {name: package for name, package in found.items() if package not in EXTRAS and name not in typed} == {}


def test_what_needs_no_package_works_without_any() -> None:
    assert run(
        """
from fastq import AsyncConsumer, Consumer, Producer
from fastq.compression import Codec, compress, decompress
from fastq.errors import MissingPackage
assert decompress(Codec.GZIP, compress(Codec.GZIP, b"x" * 99), 99) == b"x" * 99
for codec in ("none", "gzip"):
    Producer(bootstrap_servers="127.0.0.1:1", compression_type=codec).close(0)
Consumer(bootstrap_servers="127.0.0.1:1").close()
told = {}
for codec in ("snappy", "lz4", "zstd"):
    try:
        Producer(bootstrap_servers="127.0.0.1:1", compression_type=codec)
    except MissingPackage as error:
        told[codec] = [error.package, str(error)]
print(json.dumps(told))
""",
        bare=True,
    ) == {
        codec: [
            package,
            f"the codec {codec} needs the package {package}, which cannot be imported: "
            f"No module named '{module}'. pip install {package}",
        ]
        for codec, module, package in (
            ("snappy", "snappy", "python-snappy"),
            ("lz4", "lz4", "lz4"),
            ("zstd", "zstandard", "zstandard"),
        )
    }


def test_only_a_toml_file_needs_what_reads_toml(tmp_path: Path) -> None:
    """As in Python 3.10 without tomli: all is imported, a broker's properties are read, and the error of a TOML file names the package."""
    (tmp_path / "server.properties").write_text("log.dirs=d")
    (tmp_path / "broker.toml").write_text("x = 1")
    assert run(
        f"""
from pathlib import Path
from fastq.cli import main
from fastq.console.config import load_file
from fastq.errors import MissingPackage
from fastq.mirror.config import load_config
from fastq_broker.__main__ import main as broker
from fastq_broker.config import read_file
folder = Path({str(tmp_path)!r})
told = [read_file(folder / "server.properties")["log.dirs"]]
for read in (load_file, load_config, read_file):
    try:
        read(folder / "broker.toml")
    except MissingPackage as error:
        told.append(str(error).rpartition(". ")[2])
print(json.dumps(told))
""",
        without=("tomllib", "tomli"),
    ) == ["d", *["pip install tomli"] * 3]


def test_a_python_without_tls_is_told_of_a_refused_connection_as_any_other() -> None:
    """As small builds of Python are: without OpenSSL."""
    assert run(
        """
import socket
from fastq import Admin
with socket.create_server(("127.0.0.1", 0)) as nobody:
    port = nobody.getsockname()[1]
try:
    Admin(bootstrap_servers=f"127.0.0.1:{port}").describe_cluster(timeout=0.3)
except Exception as error:
    print(json.dumps([type(error).__name__, "Check that the broker runs" in str(error)]))
""",
        without=("ssl", "_ssl"),
    ) == ["ConnectionRefused", True]


@pytest.mark.parametrize("missing", LIBRARIES, ids=lambda codec: codec.name.lower())
def test_a_consumer_reads_all_but_the_codec_that_is_not_there(missing: Codec) -> None:
    module, package = LIBRARIES[missing]
    batches = {int(codec): build_batch([(0, b"k", PAYLOAD)], codec=codec).hex() for codec in Codec}
    read = run(
        f"""
from consume_support import fetched, drain
from fastq.errors import MissingPackage
read = {{}}
for codec, batch in {batches!r}.items():
    chunk = fetched(bytes.fromhex(batch))
    for _ in range(2):  # the second call is about the same batch again
        try:
            read[codec] = len(drain(chunk)[0].value)
        except MissingPackage as error:
            read[codec] = [str(error), error.package, error.topic, error.partition, error.offset, chunk.position]
        if chunk.position:
            break
print(json.dumps(read))
""",
        without=(module,),
    )
    text, *context = read.pop(str(int(missing)))
    assert context == [package, "logs", 3, 0, 0]
    assert f"the codec {missing.name.lower()} needs the package {package}" in text
    assert text.endswith(f"pip install {package}")
    assert read == {str(int(codec)): len(PAYLOAD) for codec in Codec if codec is not missing}


def test_old_messages_in_a_codec_that_is_not_there() -> None:
    wrapped = compress(Codec.LZ4, bytes(range(14)))
    told = run(
        f"""
import struct, zlib
from consume_support import fetched, drain
from fastq.errors import MissingPackage
body = bytes([0, 3]) + struct.pack(">ii", -1, {len(wrapped)}) + bytes.fromhex({wrapped.hex()!r})
message = struct.pack(">I", zlib.crc32(body)) + body
chunk = fetched(struct.pack(">qi", 0, len(message)) + message)
try:
    drain(chunk)
except MissingPackage as error:
    print(json.dumps([error.package, error.topic, error.offset]))
""",
        without=("lz4", "xxhash"),
    )
    assert told == ["lz4", "logs", 0]


def test_old_messages_in_lz4_without_what_mends_their_checksum() -> None:
    """They are read where the checksum is right as it stands; what is damaged otherwise is told as that."""
    body = bytes(2) + struct.pack(">ii", -1, -1)
    frame = compress(Codec.LZ4, struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body)
    told = run(
        f"""
import struct, zlib
from consume_support import fetched, drain
from fastq.errors import CorruptRecord, MissingPackage
right = bytes.fromhex({frame.hex()!r})
told = []
for at, change in ((6, 0), (6, 1), (0, 1)):
    frame = bytearray(right)
    frame[at] ^= change
    body = bytes([0, 3]) + struct.pack(">ii", -1, len(frame)) + frame
    message = struct.pack(">I", zlib.crc32(body)) + body
    chunk = fetched(struct.pack(">qi", 0, len(message)) + message)
    try:
        told.append(len(drain(chunk)))
    except MissingPackage as error:
        told.append([error.package, error.topic, error.offset, str(error)])
    except CorruptRecord as error:
        told.append(type(error).__name__)
print(json.dumps(told))
""",
        without=("xxhash",),
    )
    assert told[0] == 1 and told[2] == "CorruptRecord"
    assert told[1][:3] == ["xxhash", "logs", 0]
    assert "has the checksum of old clients needs the package xxhash" in told[1][3]
    assert told[1][3].endswith("pip install xxhash")


@pytest.mark.parametrize("missing", LIBRARIES, ids=lambda codec: codec.name.lower())
def test_a_broker_keeps_what_it_cannot_open(missing: Codec) -> None:
    """Only a topic whose batches are to be opened, or made anew, refuses them; the bytes of all others are as they came."""
    module, package = LIBRARIES[missing]
    name = missing.name.lower()
    refused = run(
        f"""
import tempfile
from pathlib import Path
from log_support import START_MS, TOPIC_ID, open_manager
from fastq.errors import UnsupportedCompressionType
from fastq_broker.log import LogConfig
batch = bytes.fromhex({build_batch([(1_700_000_000_000, b"k", PAYLOAD)], codec=missing).hex()!r})
plain = bytes.fromhex({build_batch([(1_700_000_000_000, b"k", PAYLOAD)]).hex()!r})
manager = open_manager(Path(tempfile.mkdtemp()))
def log(number, **settings):
    return manager.create("t", number, TOPIC_ID, config=LogConfig(**settings))
kept = log(0)
kept.append(bytearray(batch), leader_epoch=0, now_ms=START_MS)
stored = kept.read(0, 1 << 20).read()
assert bytes(stored)[61:] == batch[61:], "the records are not as they came"
refused = []
for number, settings, data in (
    (1, dict(cleanup_policy=frozenset({{"compact"}})), batch),
    (2, dict(compression_type="gzip"), batch),
    (3, dict(compression_type={name!r}), plain),
):
    partition = log(number, **settings)
    try:
        partition.append(bytearray(data), leader_epoch=0, now_ms=START_MS)
    except UnsupportedCompressionType as error:
        refused.append(str(error))
    assert partition.log_end_offset == 0
print(json.dumps(refused))
""",
        without=(module,),
    )
    assert len(refused) == 3
    assert all(f"the codec {name} needs the package {package}" in text for text in refused)
    assert all(f"pip install {package}" in text for text in refused)
    assert ["compacted" in text for text in refused] == [True, False, False]


def test_the_broker_says_at_its_start_what_is_not_there() -> None:
    warnings = run(
        """
from fastq_broker import preflight
from fastq_broker.config import BrokerConfig
machine = preflight.look(BrokerConfig.load(None, {"log.dirs": ".", "listeners": "PLAINTEXT://127.0.0.1:0"}), 65536)
print(json.dumps([line for line in preflight.warnings(machine) if "package" in line]))
""",
        without=("lz4", "snappy", "zstandard", "xxhash"),
    )
    assert [line.partition(" is not")[0] for line in warnings] == [
        f"the package {name}" for name in ("lz4", "python-snappy", "zstandard", "xxhash")
    ]
    assert "pip install python-snappy" in warnings[1]


def test_a_group_has_a_number_for_its_topics_without_xxhash() -> None:
    one, same, other = run(
        """
from fastq_broker.groups.metadata_hash import _digest
print(json.dumps([_digest(data).hex() for data in (b"a", b"a", b"b")]))
""",
        bare=True,
    )
    assert one == same != other
    assert len(one) == len(other) == 16


def test_the_loop_is_asyncio_s_without_uvloop() -> None:
    assert run(
        """
import logging
from fastq_broker.__main__ import _new_loop
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.basicConfig(level="INFO", handlers=[handler])
loop = _new_loop()
print(json.dumps([type(loop).__module__.partition(".")[0], lines]))
loop.close()
""",
        without=("uvloop",),
    ) == [
        "asyncio",
        [
            "the event loop is asyncio's, slower than that of uvloop "
            "(import of uvloop halted; None in sys.modules: pip install uvloop)"
        ],
    ]
