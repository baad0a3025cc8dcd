"""The launcher of `make binary`'s one file, with a program of a few lines in Python's place: where it unpacks, what it never trusts, and
that the process becomes the program.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from binary import build

SOMEBODY = 54321
"""Another user. Whoever is not root can make nobody else's files, and tests what he can."""

IS_ROOT = os.geteuid() == 0

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static volatile const char place[] = PLACE;
int main(int count, char **arguments) {
    char text[sizeof place];
    for (size_t at = 0; at < sizeof place; at++) text[at] = place[at];
    printf("%s\n", text);
    for (int at = 0; at < count; at++) printf("%s%c", arguments[at], at + 1 < count ? ' ' : '\n');
    mode_t mask = umask(0);
    printf("%d %03o\n", getpid(), mask);
    fflush(stdout);
    if (count > 2) return atoi(arguments[2]);
    if (count > 1) pause();
    return 0;
}
"""


def made(tree: Path, output: Path) -> Path:
    payload, size = build.pack(tree)
    build.link_launcher(payload, size, output)
    return output / "fastq-broker"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("launcher")
    (work / "program.c").write_text(PROGRAM)
    tree = work / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "data/deep").mkdir(parents=True)
    (tree / "data/empty").touch()
    (tree / "data/deep/block").write_bytes(bytes(512))
    (tree / "data/deep/large").write_bytes(b"0123456789abcdef" * (1 << 18))
    build.run("gcc", "-static", "-o", tree / "bin/fastq-broker", work / "program.c", build.define("PLACE", build.PLACE))
    (tree / "bin/fastq").symlink_to("fastq-broker")
    return tree


@pytest.fixture(scope="module")
def launcher(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tree, tmp_path_factory.mktemp("dist"))


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory as FASTQ_RUNTIME_DIR takes it."""
    path = tmp_path / "base"
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(tmp_path, ignore_errors=True)  # pytest keeps the last three


def run(command: Any, **environment: object) -> subprocess.CompletedProcess[str]:
    words = command if isinstance(command, list) else [command]
    texts = {name: str(value) for name, value in environment.items()}
    return subprocess.run(words, capture_output=True, text=True, env=texts, timeout=60)


def place_of(done: subprocess.CompletedProcess[str]) -> Path:
    """Where the program says that it was unpacked to."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[0])


def places(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir() if path.name != ".lock")


def test_the_process_becomes_the_program(launcher: Path, base: Path) -> None:
    words = ["any argument", "", "ü\n"]
    process = subprocess.Popen(
        [launcher, "first", "7", *words], stdout=subprocess.PIPE, env={"FASTQ_RUNTIME_DIR": str(base)}, umask=0o027
    )
    out = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 7
    assert f"fastq-broker first 7 {' '.join(words)}\n{process.pid} 027\n" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_ends_the_program_itself(launcher: Path, base: Path, number: signal.Signals) -> None:
    with subprocess.Popen([launcher, "wait"], stdout=subprocess.PIPE, env={"FASTQ_RUNTIME_DIR": str(base)}) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)][-1].startswith(b"%d " % process.pid)
        assert Path(f"/proc/{process.pid}/comm").read_text() == "fastq-broker\n"
        process.send_signal(number)
        assert process.wait(60) == -number


@pytest.mark.parametrize(
    ("called", "program"),
    [("fastq", "fastq"), ("./fastq", "fastq"), ("fastq-0.1", "fastq"), ("fastq-broker-0.1-x86_64", "fastq-broker"), ("b", "fastq-broker")],
)  # fmt: skip
def test_the_name_says_which_program(launcher: Path, base: Path, called: str, program: str) -> None:
    done = subprocess.run(
        [called, "x", "0"], executable=launcher, capture_output=True, text=True, env={"FASTQ_RUNTIME_DIR": str(base)}
    )
    assert done.stdout.splitlines()[1] == f"{program} x 0"


def test_what_is_unpacked_is_what_was_packed_and_nobody_elses(launcher: Path, tree: Path, base: Path) -> None:
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    assert place.parent == base
    packed = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    assert sorted(path.relative_to(place) for path in place.rglob("*")) == packed
    for name in packed:
        if (tree / name).is_file() and name.parent.name != "bin":
            assert (place / name).read_bytes() == (tree / name).read_bytes()
        assert (place / name).is_symlink() or (place / name).stat().st_mode & 0o077 == 0
    assert os.readlink(place / "bin/fastq") == "fastq-broker"
    inode = place.stat().st_ino
    assert place_of(run(launcher, FASTQ_RUNTIME_DIR=base)).stat().st_ino == inode, "unpacked a second time"


def test_the_order_of_the_directories(launcher: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    home = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "temporary"}
    cache = {"XDG_CACHE_HOME": tmp_path / "home/cache", **home}
    unit = {"CACHE_DIRECTORY": tmp_path / "temporary", **cache}
    own = tmp_path / "own"
    assert place_of(run(launcher, TMPDIR=tmp_path / "temporary")).parent == tmp_path / f"temporary/fastq-{os.geteuid()}"
    assert place_of(run(launcher, **home)).parent == tmp_path / "home/.cache/fastq"
    (tmp_path / "home/cache").mkdir()
    assert place_of(run(launcher, **cache)).parent == tmp_path / "home/cache/fastq"
    assert place_of(run(launcher, **unit)).parent == tmp_path / "temporary/runtime"
    assert place_of(run(launcher, FASTQ_RUNTIME_DIR=own, **unit)).parent == own


def test_a_directory_under_two_paths(launcher: Path, base: Path, tmp_path: Path) -> None:
    """As a volume has them, in containers and outside: the program has its path written into it."""
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    base.rename(tmp_path / "other")
    other = place_of(run(launcher, FASTQ_RUNTIME_DIR=tmp_path / "other"))
    assert other.parent == tmp_path / "other" and other.name != place.name


# -- what others have made


def refused(launcher: Path, base: Path, reason: str) -> None:
    """Refused, by one's own choice; and passed over, where there are others."""
    done = run(launcher, FASTQ_RUNTIME_DIR=base)
    assert done.returncode == 1 and done.stdout == ""
    assert reason in done.stderr and str(base) in done.stderr and "FASTQ_RUNTIME_DIR" in done.stderr


def test_a_directory_that_others_may_write_to(launcher: Path, base: Path) -> None:
    base.chmod(0o770)
    refused(launcher, base, f"others may write to {base} (mode 770)")
    base.chmod(0o1777)
    refused(launcher, base, f"others may write to {base} (mode 1777)")
    assert places(base) == []


def test_a_directory_below_one_that_others_may_write_to(launcher: Path, base: Path) -> None:
    below = base / "below"
    below.mkdir(mode=0o700)
    base.chmod(0o777)
    refused(launcher, below, f"others may write to {base} (mode 777)")
    base.chmod(0o1777)  # as /tmp is: names of others are safe in it
    assert place_of(run(launcher, FASTQ_RUNTIME_DIR=below)).parent == below


def test_a_file_in_its_place(launcher: Path, base: Path) -> None:
    (base / "file").touch()
    refused(launcher, base / "file", "is no directory")


def test_a_relative_path(launcher: Path) -> None:
    refused(launcher, Path("relative"), "not an absolute path")


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_somebody_elses_directory(launcher: Path, base: Path, tmp_path: Path, kind: str) -> None:
    """He has put there what we would run, under the names that we would use."""
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    taken = public / "fastq"
    if kind == "link":
        taken.symlink_to(base)
    else:
        shutil.copytree(base, taken, symlinks=True)
    if IS_ROOT:
        for path in [taken, *(taken.rglob("*") if kind == "directory" else ())]:
            os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
        refused(launcher, taken, f"user {SOMEBODY}")
    (tmp_path / "home").mkdir()
    found = place_of(run(launcher, XDG_CACHE_HOME=public, HOME=tmp_path / "home"))
    own = taken.resolve()  # one's own link is fine, and one's own directory
    assert found.parent == (tmp_path / "home/.cache/fastq" if IS_ROOT else own)
    assert places(base) == [place.name]


def test_the_home_of_another_user(launcher: Path, base: Path, tmp_path: Path) -> None:
    """sudo may leave HOME: nothing is made there, and nothing is run from there."""
    if not IS_ROOT:
        return
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, SOMEBODY, SOMEBODY)
    (tmp_path / "temporary").mkdir()
    assert place_of(run(launcher, HOME=home, TMPDIR=tmp_path / "temporary")).is_relative_to(tmp_path / "temporary")
    assert list(home.iterdir()) == []


# -- what was left half done


def test_what_is_not_whole_is_unpacked_anew(launcher: Path, base: Path) -> None:
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    damages: list[Callable[[], object]] = [
        lambda: (place / "data/deep/large").write_bytes(b"short"),
        lambda: (place / "data/empty").unlink(),
        lambda: shutil.rmtree(place / "bin"),
        lambda: (place / "files").unlink(),
        lambda: (place / "files").write_bytes(b""),
        lambda: (shutil.rmtree(place), place.mkdir()),
        lambda: place.chmod(0o777),  # somebody may have written there
    ]
    for damage in damages:
        damage()
        assert place_of(run(launcher, FASTQ_RUNTIME_DIR=base)) == place
        assert (place / "data/deep/large").stat().st_size == 1 << 22
        assert places(base) == [place.name]


def test_an_unpacking_that_is_killed(launcher: Path, base: Path) -> None:
    for _ in range(3):
        with subprocess.Popen([launcher], stdout=subprocess.DEVNULL, env={"FASTQ_RUNTIME_DIR": str(base)}) as process:
            while not places(base) and process.poll() is None:
                pass
            process.kill()
    (base / ".new-left").mkdir(exist_ok=True)
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    shutil.rmtree(place)
    (base / ".old-left").mkdir()
    assert place_of(run(launcher, FASTQ_RUNTIME_DIR=base)) == place
    assert places(base) == [place.name]


def test_many_first_starts_at_once(launcher: Path, base: Path) -> None:
    environment = {"FASTQ_RUNTIME_DIR": str(base)}
    started = [
        subprocess.Popen([launcher], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(12)
    ]
    found = {process.communicate(timeout=60) for process in started}
    assert [process.returncode for process in started] == [0] * 12
    assert {err for _, err in found} == {""} and len({out.splitlines()[0] for out, _ in found}) == 1
    assert len(places(base)) == 1


def test_versions_that_nobody_uses_go_after_a_week(tree: Path, launcher: Path, base: Path, tmp_path: Path) -> None:
    old = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    for name in ("0" * 16 + old.name[16:], "1" * 16 + old.name[16:], "keep-this"):
        shutil.copytree(old, base / name, symlinks=True)
    unused, held = base / ("0" * 16 + old.name[16:]), base / ("1" * 16 + old.name[16:])
    for path in (unused, held, base / "keep-this"):
        os.utime(path, (0, 0))
    other = tmp_path / "tree"
    shutil.copytree(tree, other, symlinks=True)
    (other / "data/new").touch()
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        new = place_of(run(made(other, tmp_path / "dist"), FASTQ_RUNTIME_DIR=base))
    finally:
        os.close(descriptor)
    assert places(base) == sorted([old.name, held.name, new.name, "keep-this"])


def test_a_start_says_that_a_version_is_in_use(launcher: Path, base: Path) -> None:
    place = place_of(run(launcher, FASTQ_RUNTIME_DIR=base))
    os.utime(place, (0, 0))
    run(launcher, FASTQ_RUNTIME_DIR=base)
    assert place.stat().st_mtime > 1e9


# -- what the machine does not allow


def mounted(options: str, directory: Path, launcher: Path) -> list[str]:
    """The launcher with a file system of its own at `directory`."""
    as_root = [] if IS_ROOT else ["--user", "--map-root-user"]
    script = f'mount -t tmpfs -o {options} none "$0" && exec "$1"'
    return ["unshare", "--mount", *as_root, "sh", "-c", script, str(directory), str(launcher)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [("noexec", "mounted noexec"), ("ro", "Read-only file system"), ("size=1m", "No space left on device, while")],
)  # fmt: skip
def test_a_file_system_that_does_not_do(launcher: Path, base: Path, options: str, reason: str) -> None:
    home = base / "home"
    home.mkdir(mode=0o700)
    command = mounted(f"{options},mode=700", home, launcher)
    path = os.environ["PATH"]
    refused_there = run(command, PATH=path, FASTQ_RUNTIME_DIR=home / "runtime")
    assert refused_there.returncode == 1 and reason in refused_there.stderr, refused_there.stderr
    (base / "tmp").mkdir()
    assert place_of(run(command, PATH=path, HOME=home, TMPDIR=base / "tmp")).is_relative_to(base / "tmp")


def test_a_path_that_is_too_long(launcher: Path, base: Path) -> None:
    deep = base / ("d" * 200) / ("e" * 100)
    deep.mkdir(parents=True, mode=0o700)
    refused(launcher, deep, f"at most {len(build.PLACE)}")


def test_nowhere(launcher: Path, tmp_path: Path) -> None:
    """In a root of its own, as root sees it: every directory that was looked at is named."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(launcher, root / "fastq-broker")
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    as_root = [] if IS_ROOT else ["unshare", "--user", "--map-root-user"]
    command = [shutil.which(as_root[0]) or "", *as_root[1:]] if as_root else []
    done = run([*command, chroot, str(root), "/fastq-broker"], HOME="/home/me", TMPDIR="/t")
    assert done.returncode == 1
    for path in ("/home/me/.cache/fastq", "/t/fastq-", "/var/tmp/fastq-", "/tmp/fastq-", "/dev/shm/fastq-"):
        assert f"\n  {path}" in done.stderr
