"""What wheel_checks.py finds wrong with a wheel."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import wheel_checks  # noqa: E402
from wheel_checks import Binary, check, read_elf  # noqa: E402
from wheel_targets import TARGETS, WheelError  # noqa: E402
from wheels import assemble  # noqa: E402

from fastq import Producer  # noqa: E402
from fastq._native import crc32c  # noqa: E402

TARGET = TARGETS["cp311-musllinux_aarch64"]
"""Not of what this machine compiles: so its binaries are always the wrong ones here."""


def pure_wheel(folder: Path, **more: str) -> Path:
    info = "fastq_sdk-1.dist-info"
    files = {
        "fastq/__init__.py": "",
        "fastq/py.typed": "",
        "fastq/_native/crc32c.pyi": "",
        "fastq_broker/__main__.py": "",
        "fastq_broker/py.typed": "",
        f"{info}/METADATA": "",
        f"{info}/entry_points.txt": "",
        f"{info}/licenses/LICENSE": "",
        f"{info}/WHEEL": "Tag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    path = folder / "fastq_sdk-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as sink:
        for name, text in {**files, **more}.items():
            sink.writestr(name, text)
    return path


def extension(folder: Path) -> Path:
    path = folder / f"crc32c{TARGET.suffix}"
    path.write_bytes(Path(crc32c.__file__).read_bytes())
    return path


def test_a_binary_of_another_machine_is_found(tmp_path: Path) -> None:
    found = read_elf(Path(crc32c.__file__).read_bytes())
    assert isinstance(found, Binary)
    wheel = assemble(pure_wheel(tmp_path), [extension(tmp_path)], TARGET, tmp_path / "made")
    assert wheel.name == "fastq_sdk-1-cp311-cp311-musllinux_1_2_aarch64.whl"
    with pytest.raises(WheelError) as caught:
        check(wheel, TARGET, ["crc32c"])
    told = str(caught.value)
    assert f"it is for {found.machine}" in told or "it needs" in told
    assert "RECORD" not in told


def test_what_is_missing_and_what_is_too_much_is_found(tmp_path: Path) -> None:
    more = {"fastq/_native/wire.pyx": "", "tests/test_wheel.py": "", "fastq/_native/wire.c": ""}
    wheel = assemble(pure_wheel(tmp_path, **more), [extension(tmp_path)], TARGET, tmp_path / "made")
    with pytest.raises(WheelError) as caught:
        check(wheel, TARGET, ["crc32c", "wire"])
    told = str(caught.value)
    for fault in (
        "there is no fastq/_native/wire.so",
        "wire has no types",
        "fastq/_native/wire.pyx does not belong into it",
        "fastq/_native/wire.c does not belong into it",
        "tests/test_wheel.py does not belong into it",
    ):
        assert fault in told


def test_a_wheel_that_is_too_large_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = assemble(pure_wheel(tmp_path), [extension(tmp_path)], TARGET, tmp_path / "made")
    monkeypatch.setattr(wheel_checks, "WHEEL_BYTES", wheel.stat().st_size - 1)
    with pytest.raises(WheelError, match=f"it has {wheel.stat().st_size:,} bytes, more than"):
        check(wheel, TARGET, ["crc32c"])


def test_a_trial_elsewhere_has_a_broker_of_the_sources() -> None:
    with wheel_checks._broker_of_the_sources() as servers, Producer(bootstrap_servers=servers) as producer:
        assert producer.send("of-a-wheel", b"value").result(20).offset == 0


def test_a_file_that_was_changed_later_is_found(tmp_path: Path) -> None:
    wheel = assemble(pure_wheel(tmp_path), [extension(tmp_path)], TARGET, tmp_path / "made")
    with zipfile.ZipFile(wheel) as source:
        files = {name: source.read(name) for name in source.namelist()}
    files["fastq/__init__.py"] = b"changed"
    del files["fastq/py.typed"]
    with zipfile.ZipFile(wheel, "w") as sink:
        for name, data in files.items():
            sink.writestr(name, data)
    with pytest.raises(WheelError, match=r"RECORD has fastq/py\.typed.*RECORD has another fastq/__init__\.py"):
        check(wheel, TARGET, ["crc32c"])


def test_the_same_files_make_the_same_wheel(tmp_path: Path) -> None:
    made = [
        assemble(pure_wheel(tmp_path), [extension(tmp_path)], TARGET, tmp_path / folder).read_bytes()
        for folder in ("one", "two")
    ]
    assert made[0] == made[1]
