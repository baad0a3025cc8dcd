"""Whether a wheel of wheels.py is right: what it holds, what its extensions ask of a system, and whether they run.

Rules
- Looked at is the file that would be published, not what it was made of.
- Of a system may be asked what the wheel's tag promises: no newer glibc or macOS, no library that is not part of every such system.
- A run installs the wheel with pip, without its dependencies, loads all of it in an interpreter for its platform, and sends records to
  a broker and reads them again: its own on x86-64 Linux, elsewhere that of these sources, which runs beside it on this machine. Where there
  is no such interpreter, the answer is the reason, never silence.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from wheel_targets import ROOT, Target, WheelError, archive_name, unpacked

RUN_TIMEOUT_S: Final = 600.0
WHEEL_BYTES: Final = 6_000_000
"""Of a wheel, at most."""
SUFFIXES: Final = {
    ".py",
    ".pyi",
    ".so",
    ".pyd",
    ".typed",
    ".html",
    ".css",
    ".js",
    ".svg",
    ".txt",
    ".png",
    ".ico",
    ".woff2",
}
"""Of what a wheel may hold beside its metadata."""
AARCH64_ROOT: Final = Path(os.environ.get("FASTQ_AARCH64_ROOT", "/usr/aarch64-linux-gnu"))
"""A root of ARM64 with the C library and zlib, for QEMU: what debootstrap makes, or libc6 and zlib1g of Debian, unpacked."""

RUN: Final = """
import importlib, sys, sysconfig
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2].split(","):
    module = importlib.import_module(f"fastq._native.{name}")
    assert module.__file__.startswith(sys.argv[1]), module.__file__
import fastq, fastq_broker, fastq.cli, fastq.testing
from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq._native.crc32c import crc32c
from fastq._native.records import build_batch, decode_records, verify_crc
from fastq.compression import Codec, decompress
for size in (9, 100, 5_000, 200_000):  # each way of the checksum
    data = bytes(range(256)) * (size // 256 + 1)
    assert crc32c(data[:size]) == crc32c(data[1:size], crc32c(data[:1])), size
assert crc32c(b"123456789") == 0xE3069283
rows = [(1_700_000_000_000 + n, b"key %d" % n, b"value" * n) for n in range(500)]
for codec in (Codec.NONE, Codec.GZIP):
    batch = bytes(build_batch(rows, codec=codec))
    assert verify_crc(batch)
    found = decode_records(batch, 0, decompress)
    assert [(r.timestamp_ms, r.key, r.value) for r in found] == rows
Producer(bootstrap_servers="127.0.0.1:1").close(0)
Consumer(bootstrap_servers="127.0.0.1:1").close()
def there_and_back(servers):
    with Producer(bootstrap_servers=servers, compression_type="gzip") as producer:
        for n in range(1_000):
            producer.send(sys.argv[4], b"value %d" % n)
    with Consumer(sys.argv[4], bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        values = set()
        for record in consumer:
            values.add(record.value)
            if len(values) == 1_000:
                break
if sys.argv[3] == "own":
    with fastq.testing.Broker() as broker:
        there_and_back(broker.bootstrap_servers)
else:
    there_and_back(sys.argv[3])
print("ran on", sys.version.partition(" ")[0], sysconfig.get_platform())
"""


# --- contents


def check(wheel: Path, target: Target, extensions: Sequence[str]) -> None:
    """Raises WheelError with all that is wrong with a wheel."""
    found = list(_faults(wheel, target, extensions))
    if found:
        raise WheelError(f"{wheel.name}: " + "; ".join(found))


def _faults(wheel: Path, target: Target, extensions: Sequence[str]) -> Iterator[str]:
    if wheel.stat().st_size > WHEEL_BYTES:
        yield f"it has {wheel.stat().st_size:,} bytes, more than {WHEEL_BYTES:,}"
    with zipfile.ZipFile(wheel) as source:
        files = {name: source.read(name) for name in source.namelist()}
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    if wheel.name != f"{info.removesuffix('.dist-info')}-{target.tag}.whl":
        yield f"its name does not say {target.tag}"
    if f"Tag: {target.tag}\n" not in files[f"{info}/WHEEL"].decode() or b"Purelib: false" not in files[f"{info}/WHEEL"]:
        yield f"its WHEEL does not say {target.tag}"
    yield from _record_faults(files, f"{info}/RECORD")
    for part in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if f"{info}/{part}" not in files:
            yield f"there is no {part}"
    for part in ("fastq/py.typed", "fastq_broker/py.typed", "fastq/__init__.py", "fastq_broker/__main__.py"):
        if part not in files:
            yield f"there is no {part}"
    for name in files:
        top = name.partition("/")[0]
        if top not in ("fastq", "fastq_broker", "pyspark_fastq", info):
            yield f"{name} does not belong into it"
        elif top != info and PurePosixPath(name).suffix not in SUFFIXES:
            yield f"{name} does not belong into it: a wheel has no sources of extensions"
    wanted = {f"fastq/_native/{name}{target.suffix}" for name in extensions}
    binaries = {name for name in files if name.endswith((".so", ".pyd"))}
    yield from (f"there is no {name}" for name in sorted(wanted - binaries))
    yield from (f"{name} was not to be there" for name in sorted(binaries - wanted))
    yield from (f"{name} has no types" for name in extensions if f"fastq/_native/{name}.pyi" not in files)
    for name in sorted(binaries):
        yield from (f"{name}: {fault}" for fault in _binary_faults(files[name], target))
    if "linux" in target.platform.name:
        yield from _audit(wheel, target)


def _record_faults(files: dict[str, bytes], record: str) -> Iterator[str]:
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[record].decode()))}
    yield from (f"RECORD does not have {name}" for name in files.keys() - rows.keys())
    yield from (f"RECORD has {name}, which is not there" for name in rows.keys() - files.keys())
    for name in files.keys() & rows.keys() - {record}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        if rows[name] != [f"sha256={digest}", str(len(files[name]))]:
            yield f"RECORD has another {name}"


# --- binaries


class Binary(NamedTuple):
    """What the file of an extension asks for."""

    machine: str
    libraries: set[str]
    system: tuple[int, ...] = ()
    """The version of glibc or macOS."""


def _binary_faults(data: bytes, target: Target) -> Iterator[str]:
    name = target.platform.name
    read, allowed = next(rule for part, rule in RULES.items() if part in name)
    found = read(data)
    machine = name.partition("_")[2].replace("arm64", "aarch64").replace("amd64", "x86_64")
    if found.machine != machine:
        yield f"it is for {found.machine}, not {machine}"
    pattern = re.compile(allowed.format(digits=target.digits))
    yield from (f"it needs {library}" for library in sorted(found.libraries) if not pattern.fullmatch(library))
    promised = tuple(int(part) for part in re.findall(r"_(\d+)", target.platform.tag)[:2])
    if "musl" not in name and found.system > promised:
        yield f"it needs version {found.system} of the system, and the tag says {promised}"


def read_elf(data: bytes) -> Binary:
    """Linux's: 64 bits, least byte first."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise WheelError(f"no ELF file of 64 bits: it begins with {data[:6].hex(' ')}")
    machine = struct.unpack_from("<H", data, 18)[0]
    headers, entry_size, count = struct.unpack_from("<Q 10x 2H", data, 40)
    # Each: name, type, flags, address, offset, size, the section it refers to, ...
    sections = [struct.unpack_from("<2I4Q2I2Q", data, headers + number * entry_size) for number in range(count)]

    def text(section: tuple[int, ...], at: int) -> str:
        start = sections[section[6]][4] + at
        return data[start : data.index(b"\0", start)].decode()

    libraries, system = set[str](), ()
    for section in sections:
        offset, size = section[4:6]
        if section[1] == 6:  # SHT_DYNAMIC; a tag of 1 is DT_NEEDED
            entries = struct.iter_unpack("<qQ", data[offset : offset + size])
            libraries |= {text(section, value) for tag, value in entries if tag == 1}
        elif section[1] == 0x6FFFFFFE:  # SHT_GNU_verneed: of each library, the versions of its symbols
            for name in _needed_versions(data, offset, section, text):
                if name.startswith("GLIBC_"):
                    system = max(system, tuple(int(part) for part in name[6:].split(".")))
    return Binary({62: "x86_64", 183: "aarch64"}.get(machine, f"machine {machine}"), libraries, system)


def _needed_versions(
    data: bytes, at: int, section: tuple[int, ...], text: Callable[[tuple[int, ...], int], str]
) -> Iterator[str]:
    for _ in range(section[7]):
        count, first, following = struct.unpack_from("<2x H 4x 2I", data, at)
        inner = at + first
        for _ in range(count):
            name, step = struct.unpack_from("<8x 2I", data, inner)
            yield text(section, name)
            inner += step
        at += following


def read_mach_o(data: bytes) -> Binary:
    """macOS's: one machine, 64 bits. Raises WheelError for one that arm64 would not load for want of a signature."""
    magic, cpu, _, _, count, _, _, _ = struct.unpack_from("<8I", data)
    if magic != 0xFEEDFACF:
        raise WheelError(f"no Mach-O file: it begins with {magic:#x}")
    at, libraries, system, signed = 32, set[str](), (), False
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        if command in (0xC, 0x80000018, 0x8000001F):  # LC_LOAD_DYLIB, and the weak and re-exporting ones
            start = at + struct.unpack_from("<I", data, at + 8)[0]
            libraries.add(data[start : data.index(b"\0", start)].decode())
        elif command in (0x24, 0x32):  # LC_VERSION_MIN_MACOSX, LC_BUILD_VERSION
            version = struct.unpack_from("<I", data, at + (8 if command == 0x24 else 12))[0]
            system = (version >> 16, version >> 8 & 0xFF)
        signed = signed or command == 0x1D
        at += size
    machine = {0x01000007: "x86_64", 0x0100000C: "aarch64"}[cpu]
    if machine == "aarch64" and not signed:
        raise WheelError("it has no signature, and arm64 loads nothing without")
    return Binary(machine, libraries, system)


def read_pe(data: bytes) -> Binary:
    """Windows': 64 bits."""
    header = struct.unpack_from("<I", data, 0x3C)[0]
    machine, sections, optional_size = struct.unpack_from("<H H 12x H", data, header + 4)
    optional = header + 24
    imports = struct.unpack_from("<I", data, optional + 112 + 8)[0]
    table = []
    for number in range(sections):
        size, address, raw_size, raw = struct.unpack_from("<4I", data, optional + optional_size + 40 * number + 8)
        table.append((address, max(size, raw_size), raw))

    def place(address: int) -> int:
        return next(address - start + raw for start, size, raw in table if start <= address < start + size)

    at, libraries = place(imports), set[str]()
    while name := struct.unpack_from("<I", data, at + 12)[0]:
        start = place(name)
        libraries.add(data[start : data.index(b"\0", start)].decode().lower())
        at += 20
    return Binary({0x8664: "x86_64", 0xAA64: "aarch64"}[machine], libraries)


RULES: Final[dict[str, tuple[Callable[[bytes], Binary], str]]] = {
    "manylinux": (read_elf, r"lib(c|m|pthread|rt|dl)\.so\.\d+|ld-linux-[\w-]+\.so\.\d"),
    "musllinux": (read_elf, r"libc\.so"),
    "macos": (read_mach_o, r"/usr/lib/libSystem\.B\.dylib"),
    "windows": (read_pe, r"python{digits}\.dll|kernel32\.dll|ntdll\.dll|api-ms-win-crt-[\w-]+\.dll"),
}
"""How a file is read, and the libraries that it may need: those that every such system has."""


def _audit(wheel: Path, target: Target) -> Iterator[str]:
    """What auditwheel says against the tag."""
    command = [sys.executable, "-m", "auditwheel", "show"]
    with tempfile.TemporaryDirectory() as nothing:
        if "musl" in target.platform.name:  # whose libc.so it would take this machine's file of that name for
            command += ["--ldpaths", nothing]
        done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    said = " ".join((done.stdout + done.stderr).split())
    tag = re.search(r'platform tag: "(\w+)"', said)
    # zig names musl libc.so, Alpine libc.musl-x86_64.so.1, and musl's loader takes itself for either (load_library in ldso/dynlink.c).
    only_name = re.search(
        r"tag '(\w+)' the following shared library dependencies will need to be eliminated: libc\.so$",
        " ".join(done.stdout.split()),
    )
    if only_name is not None and "musl" in target.platform.name:
        tag = only_name
    if done.returncode or tag is None:
        yield f"auditwheel cannot judge it: {said}"
    elif _newness(tag[1]) > _newness(target.platform.tag):
        yield f"auditwheel says {tag[1]}"


def _newness(tag: str) -> tuple[int, ...]:
    """The version of the C library that a tag stands for; without one, newer than all."""
    found = re.match(r"(?:many|musl)linux_(\d+)_(\d+)_", tag)
    old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    return tuple(map(int, found.groups())) if found else old.get(tag.partition("_")[0], (999,))


# --- runs


def try_out(wheel: Path, target: Target) -> str:
    """Install the wheel alone and load all of it; the reason where this machine cannot. Raises WheelError where it does not run."""
    command, environment, reason = _interpreter(target)
    if reason:
        return reason
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
        install += ["--target", folder, "--only-binary", ":all:", "--platform", target.platform.tag]
        install += ["--implementation", "cp", "--abi", target.python, "--python-version", f"3.{target.digits[1:]}"]
        _run([*install, str(wheel)], {}, "pip does not take it")
        with zipfile.ZipFile(wheel) as source:
            names = [name for name in source.namelist() if name.endswith(target.suffix) and "/_native/" in name]
        extensions = ",".join(PurePosixPath(name).name.removesuffix(target.suffix) for name in names)
        own = target.platform.name == "manylinux_x86_64"
        script = Path(folder) / "run_of_wheel.py"
        script.write_text(RUN)
        place = folder if "windows" not in target.platform.name else "Z:" + folder.replace("/", "\\")
        of_python = str(script) if place == folder else f"{place}\\run_of_wheel.py"
        if own:  # its broker is a process of its own
            environment = {**environment, "PYTHONPATH": folder}
        with nullcontext("own") if own else _broker_of_the_sources() as servers:
            words = [of_python, place, extensions, servers, f"of-{target.name}"]
            said = _run([*command, *words], environment, "it does not run")
        if "ran on" not in said:
            raise WheelError(f"{wheel.name}: the run ended early: {said}")
    return ""


@contextmanager
def _broker_of_the_sources() -> Iterator[str]:
    """A broker that runs beside the trial; answers its address. Raises WheelError where the extensions of the sources are not built."""
    sources = [str(ROOT / "src"), str(ROOT / "broker")]
    sys.path[:0] = sources
    try:
        from fastq.testing import Broker, BrokerFailed
    except ImportError as error:
        raise WheelError(
            f"no broker to try it with: {error}; make ext builds the extensions of these sources"
        ) from error
    finally:
        del sys.path[: len(sources)]
    try:
        with Broker(env={"PYTHONPATH": os.pathsep.join(sources)}) as broker:
            yield broker.bootstrap_servers
    except BrokerFailed as error:
        raise WheelError(f"no broker to try it with: {error}") from error


def _run(command: Sequence[str], environment: dict[str, str], wrong: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command,
            env={**kept, **environment},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"{wrong}: it did not end within {RUN_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise WheelError(f"{wrong}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _interpreter(target: Target) -> tuple[list[str], dict[str, str], str]:
    """The command of a Python for the target, its environment, and the reason where there is none."""
    platform = target.platform
    if "musl" in platform.name:
        variable = f"FASTQ_MUSL_{target.python.upper()}_{platform.name.partition('_')[2].upper()}"
        command = os.environ.get(variable, "").split()
        return command, {}, "" if command else f"no Python built for musl ({variable} is not set)"
    if "macos" in platform.name:
        return [], {}, "that takes a Mac"
    try:
        root = unpacked(target.python, platform.python)
    except WheelError:
        return [], {}, f"there is no {archive_name(target.python, platform.python)}"
    if "windows" in platform.name:
        wine = shutil.which("wine64") or shutil.which("wine")
        if wine is None:
            return [], {}, "that takes Windows, or Wine"
        quiet = {"WINEDEBUG": "-all", "PYTHONDONTWRITEBYTECODE": "1"}
        return [wine, str(root / "python.exe"), "-I"], quiet, ""
    python = root / "bin" / f"python3.{target.digits[1:]}"
    python.chmod(0o755)
    environment = {"LD_LIBRARY_PATH": str(root), "PYTHONHOME": str(root)}
    if platform.python.endswith("arm64"):
        qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        if qemu is None:
            return [], {}, "qemu-aarch64-static is not installed (Debian: qemu-user-static)"
        folders = [AARCH64_ROOT / part for part in ("lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu")]
        if not any((folder / "libz.so.1").exists() for folder in folders):
            return [], {}, f"no root of ARM64 with libc and zlib in {AARCH64_ROOT} (FASTQ_AARCH64_ROOT says where)"
        inner = {"LD_LIBRARY_PATH": ":".join(map(str, (root, *folders))), "PYTHONHOME": str(root)}
        sets = [part for name, value in inner.items() for part in ("-E", f"{name}={value}")]
        return [qemu, "-L", str(AARCH64_ROOT), *sets, str(python), "-S"], {}, ""
    return [str(python), "-S"], environment, ""
