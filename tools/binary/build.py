"""`make binary`: dist/fastq-broker and dist/fastq, one static executable with Python and all that fastq needs in it.

    python tools/binary/build.py [--output dist]

Rules
- What is packed is what the tests have run: the interpreter that runs this, the installed dependencies of fastq-sdk and of its extras
  `console` and `schemas`, and the sources and extensions of this folder. Nothing is fetched.
- Modules are packed as bytecode, whole packages, so that nobody lists what is imported by name; of the standard library all but what
  LEFT_OUT names.
- Every library that a file asks for is packed, the C library and its dynamic linker too; what would be looked for outside fails the build.
- The same sources, tools and versions give the same bytes: no times, no paths of this machine, names in order.
- Licenses of what is packed are packed with it, below site/*.dist-info and licenses/.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import py_compile
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import zlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).resolve().parent
BUILD = ROOT / "build/binary"
TREE = BUILD / "tree"
PLACE = "/fastq-place/" + "x" * 243
"""Stands in the program for the directory that it is unpacked into; as long as that may be."""

PACKAGES = {"fastq": ROOT / "src/fastq", "fastq_broker": ROOT / "broker/fastq_broker"}
DATA = re.compile(r"fastq/console/(templates|static)/|\.so$")
LEFT_OUT = re.compile(
    r"(test|idlelib|tkinter|turtledemo|lib2to3|ensurepip|venv|pydoc_data|distutils|sqlite3|curses|dbm|msilib|config-[^/]*|"
    r"site-packages|dist-packages|__pycache__|[^/]*/(tests?|__pycache__)|[^/]*/[^/]*/tests?)/|"
    r"(turtle|this|antigravity|sitecustomize|_sysconfigdata[^/]*)\.py$|"
    r"lib-dynload/(_test|_ctypes_test|_?xx|_tkinter|_curses|readline|_sqlite3|_g?dbm|nis|ossaudiodev|spwd|_crypt)"
)
"""Of the standard library: tests, what has a window or a terminal's screen, databases, builds of packages; readline has another license."""

NOT_PACKED = re.compile(
    r"(^|/)(__pycache__|tests|sboms)/|\.(pyi|pyx|pxd|pxi|c|h|typed)$|\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$"
)
"""Of the dependencies: tests, sources and declarations, what says where pip has put them."""

LATE_LIBRARIES = ("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2")
"""What the C library opens when it needs it: the end of a thread, names of hosts before glibc 2.34."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the two names go (default: dist)")
    output = parser.parse_args().output
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        sys.exit(
            "make binary: it takes a Linux with glibc to build; what it builds runs on any Linux of its architecture"
        )
    check_machine()
    shutil.rmtree(BUILD, ignore_errors=True)
    TREE.mkdir(parents=True)
    stage_standard_library()
    for name, source in PACKAGES.items():
        stage_package(source, TREE / "site" / name)
    for distribution in distributions("fastq-sdk", ("console", "schemas")):
        stage_distribution(distribution)
    stage_start()
    stage_program()
    stage_libraries()
    strip()
    check_libraries()
    payload, size = pack(TREE)
    link_launcher(payload, size, output)
    binary = output / "fastq-broker"
    print(f"{binary}: {binary.stat().st_size / 1e6:.1f} MB, {size / 1e6:.1f} MB unpacked")


def check_machine() -> None:
    """What only the last step would miss is said first."""
    if shutil.which("gcc") is None:
        sys.exit("make binary: gcc is missing: on Debian and Ubuntu, apt-get install gcc libc6-dev zlib1g-dev")
    for library, package in (("libc.a", "libc6-dev"), ("libz.a", "zlib1g-dev")):
        if not Path(run("gcc", f"-print-file-name={library}").strip()).is_absolute():
            sys.exit(f"make binary: {library} is missing: on Debian and Ubuntu, apt-get install {package}")


# -- Python's files


def compile_to(source: Path, target: Path) -> None:
    """Bytecode that is loaded without its source, and names it as it is called in the tree."""
    target.parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile(
        str(source),
        str(target.with_suffix(".pyc")),
        str(target.relative_to(TREE)),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def copy_to(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def stage_standard_library() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for source in sorted(library.rglob("*")):
        name = source.relative_to(library).as_posix()
        if not source.is_file() or LEFT_OUT.match(name):
            continue
        if source.suffix == ".py":
            compile_to(source, TREE / "python" / name)
        elif name.startswith("lib-dynload/"):
            copy_to(source, TREE / "python" / source.name)
    for license_file in (library / "LICENSE.txt", Path("/usr/share/doc/libc6/copyright"), ROOT / "LICENSE"):
        if license_file.exists():
            kind = {"LICENSE.txt": "python", "copyright": "libc6"}.get(license_file.name, "fastq")
            copy_to(license_file, TREE / "licenses" / kind)


def stage_package(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source.parent).as_posix()
        if "__pycache__" in path.parts:
            continue
        if path.suffix == ".py":
            compile_to(path, target / path.relative_to(source))
        elif DATA.search(name):
            copy_to(path, target / path.relative_to(source))
    extensions = {path.stem for path in source.glob("_native/*.pyx")}
    missing = extensions - {path.name.partition(".")[0] for path in target.glob("_native/*.so")}
    if missing:
        sys.exit(f"make binary: extensions are not built: {', '.join(sorted(missing))}; make ext builds them")


def distributions(name: str, extras: Iterable[str]) -> list[metadata.Distribution]:
    """What is installed of a distribution's requirements and of theirs, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, tuple(extras))]
    while waiting:
        owner, wanted = waiting.pop()
        try:
            distribution = metadata.distribution(owner)
        except metadata.PackageNotFoundError:
            sys.exit(f"make binary: {owner} is not installed; make binary through the Makefile installs what it takes")
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in wanted or ("",)):
                continue
            key = requirement.name.lower().replace("_", "-")
            if key not in found or requirement.extras:
                found[key] = metadata.distribution(requirement.name)
                waiting.append((requirement.name, tuple(requirement.extras)))
    return [found[key] for key in sorted(found)]


def stage_distribution(distribution: metadata.Distribution) -> None:
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if file.parts[0] == ".." or NOT_PACKED.search(file.as_posix()):
            continue
        if source.suffix == ".py":
            compile_to(source, TREE / "site" / file)
        else:
            copy_to(source, TREE / "site" / file)


def stage_start() -> None:
    paths = ssl.get_default_verify_paths()
    constants = BUILD / "start_build.py"
    constants.write_text(f"CA_DEFAULTS = {(paths.openssl_cafile, paths.openssl_capath)!r}\n", encoding="utf-8")
    compile_to(constants, TREE / "python/start_build.py")
    compile_to(OWN / "start.py", TREE / "python/start.py")


# -- the machine's files


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LC_ALL": "C"} | environment,
    )
    if done.returncode:
        sys.exit(f"make binary: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def define(name: str, value: str) -> str:
    return f'-D{name}="{value}"'


def stage_program() -> None:
    get = sysconfig.get_config_var
    if get("Py_ENABLE_SHARED"):
        python = [f"-L{get('LIBDIR')}", f"-lpython{get('LDVERSION')}"]
    else:
        python = [f"{get('LIBPL')}/{get('LIBRARY')}", *get("LIBS").split(), *get("SYSLIBS").split()]
    target = TREE / "bin/fastq-broker"
    target.parent.mkdir()
    run(
        *(get("CC") or "gcc").split()[:1],
        *("-O2", "-Wall", "-Wextra", "-Werror", "-o", target, OWN / "program.c", f"-I{sysconfig.get_path('include')}"),
        define("PLACE", PLACE),
        *python,
        *(get("LINKFORSHARED") or "").split(),
        # DT_RPATH, which goes before LD_LIBRARY_PATH and is heard for the libraries' own libraries too.
        *(f"-Wl,--dynamic-linker={PLACE}/lib/ld.so", f"-Wl,-rpath,{PLACE}/lib", "-Wl,--disable-new-dtags"),
    )
    for name in ("fastq", "fastq-python"):
        (TREE / "bin" / name).symlink_to("fastq-broker")


def machine_files() -> list[Path]:
    """The tree's programs and shared objects."""
    files = [path for path in sorted(TREE.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.open("rb").read(4) == b"\x7fELF"]


def stage_libraries() -> None:
    """The libraries that files of the tree ask for, by the names that they ask by."""
    (TREE / "lib").mkdir()
    linker = re.search(r"interpreter: (\S+?)\]", run("readelf", "-l", sys.executable))
    assert linker is not None, "the interpreter has no dynamic linker"
    shutil.copyfile(linker[1], TREE / "lib/ld.so")
    for name in LATE_LIBRARIES:
        found = Path(run("gcc", f"-print-file-name={name}").strip())
        if found.is_absolute():
            shutil.copyfile(found, TREE / "lib" / name)
    library_path = sysconfig.get_config_var("LIBDIR")
    for path in machine_files():
        for line in run(linker[1], "--list", "--library-path", library_path, path).splitlines():
            asked, arrow, found = line.partition(" => ")
            if not arrow:
                continue
            if "not found" in found:
                sys.exit(f"make binary: {path.relative_to(TREE)} asks for {asked.strip()}, which is not here")
            source = Path(found.split(" (")[0].strip())
            target = TREE / "lib" / Path(asked.strip()).name
            if not source.resolve().is_relative_to(TREE) and not target.exists() and str(source) != linker[1]:
                shutil.copyfile(source, target)
    for path in machine_files():
        if path.parent.name != "bin":
            forget_search_path(path)
    for path in machine_files():
        path.chmod(0o755 if path.parent.name in ("bin", "lib") else 0o644)


def forget_search_path(path: Path) -> None:
    """Take out of a library where it looks for others (DT_RPATH, DT_RUNPATH): places of the machine that it was built on, unless they are
    beside itself."""
    own = re.search(r"R(?:UN)?PATH\) .*\[(.*)\]", run("readelf", "-dW", path))
    if own is None or own[1].startswith("$ORIGIN"):
        return
    segment = re.search(r" DYNAMIC +0x(\w+) \w+ \w+ 0x(\w+)", run("readelf", "-lW", path))
    assert segment is not None, f"{path} has a search path and no dynamic segment"
    offset, size = int(segment[1], 16), int(segment[2], 16)
    content = bytearray(path.read_bytes())
    entries = [bytes(content[at : at + 16]) for at in range(offset, offset + size, 16)]
    kept = [entry for entry in entries if int.from_bytes(entry[:8], sys.byteorder) not in (15, 29)]
    content[offset : offset + size] = b"".join(kept).ljust(size, b"\0")
    path.write_bytes(content)


def strip() -> None:
    for path in machine_files():
        run("strip", "--strip-unneeded", path)


def check_libraries() -> None:
    """Every library is found in the tree, by the tree's own linker."""
    linker = TREE / "lib/ld.so"
    for path in machine_files():
        if path.name == "ld.so":
            continue
        listed = run(linker, "--inhibit-cache", "--list", "--library-path", TREE / "lib", path, LD_LIBRARY_PATH="")
        for line in listed.splitlines():
            found = line.partition(" => ")[2].split(" (")[0].strip()
            if found and not Path(found).is_relative_to(TREE):
                sys.exit(f"make binary: {path.relative_to(TREE)} looks outside of what is packed: {line.strip()}")


# -- one file


def pack(tree: Path) -> tuple[bytes, int]:
    """A tree as a compressed tar file with the list of its files, and how many bytes that unpacks to."""
    (tree / "files").unlink(missing_ok=True)
    paths = sorted(tree.rglob("*"))
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    listed = "".join(f"{path.stat().st_size} {path.relative_to(tree)}\n" for path in files)
    (tree / "files").write_text(listed, encoding="utf-8")
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in [*paths, tree / "files"]:
            member = tarfile.TarInfo(path.relative_to(tree).as_posix())
            member.mode = 0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(member)
            elif path.is_dir():
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            else:
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(member, file)
    return zlib.compress(text.getvalue(), 9), sum(path.stat().st_size for path in files)


def link_launcher(payload: bytes, size: int, output: Path) -> None:
    """launcher.c with its payload, and the name `fastq` for it. size: what is said to be unpacked, in bytes."""
    output.mkdir(parents=True, exist_ok=True)
    draft, packed = output / ".fastq-broker.new", output / ".payload"  # one that runs is not written over
    packed.write_bytes(payload)
    run(
        *("gcc", "-static", "-Os", "-Wall", "-Wextra", "-Werror", "-o", draft, OWN / "launcher.c", "-lz"),
        *(
            define("PAYLOAD", str(packed)),
            define("KEY", hashlib.sha256(payload).hexdigest()[:16]),
            define("PLACE", PLACE),
        ),
        f"-DUNPACKED_BYTES={size}",
    )
    packed.unlink()
    run("strip", draft)
    draft.replace(output / "fastq-broker")
    link = output / "fastq"
    link.unlink(missing_ok=True)
    link.symlink_to("fastq-broker")


if __name__ == "__main__":
    main()
