"""Which version of an API to speak with a broker, from what both sides support (KIP-35)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fastq.errors import UnsupportedVersion
from fastq.protocol.api import APIS, api_name


class ApiVersionRange(Protocol):
    """An entry of an ApiVersionsResponse."""

    api_key: int
    min_version: int
    max_version: int


class BrokerVersions:
    """What one broker supports, as it said in its ApiVersionsResponse; immutable.

    `pick` is cheap (two dictionary look-ups), so it may be called for each request. `features` are the levels that the
    cluster has finalized (KIP-584), as of `features_epoch` (-1: the broker said nothing of them).
    """

    __slots__ = ("_broker", "_picked", "_ranges", "features", "features_epoch")

    def __init__(
        self,
        entries: Iterable[ApiVersionRange],
        broker: str | None = None,
        features: Mapping[str, int] | None = None,
        features_epoch: int = -1,
    ) -> None:
        self._broker = broker
        self.features = dict(features or {})
        self.features_epoch = features_epoch
        self._ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in entries}
        self._picked: dict[tuple[int, int | None, int | None], int] = {}

    @property
    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """The broker's first and last version of each API."""
        return self._ranges

    def supports(self, key: int, version: int = 0) -> bool:
        """Whether a version of `version` or above is shared."""
        info, theirs = APIS.get(key), self._ranges.get(key)
        if info is None or theirs is None:
            return False
        return max(info.min_version, theirs[0], version) <= min(info.max_stable_version, theirs[1])

    def pick(self, key: int, min_version: int | None = None, max_version: int | None = None) -> int:
        """The highest shared version, within the caller's own bounds when given. UnsupportedVersion if there is none."""
        asked = key, min_version, max_version
        picked = self._picked.get(asked)
        if picked is None:
            picked = self._picked[asked] = self._pick(*asked)
        return picked

    def _pick(self, key: int, min_version: int | None, max_version: int | None) -> int:
        info, theirs = APIS[key], self._ranges.get(key)
        first = info.min_version if min_version is None else max(min_version, info.min_version)
        last = info.max_stable_version if max_version is None else min(max_version, info.max_stable_version)
        if theirs is None:
            raise UnsupportedVersion(
                f"the broker does not offer the {api_name(key)} API",
                broker=self._broker,
                api=info.name,
                hint="It may be too old, or this may be a listener that does not serve this API.",
            )
        picked = min(last, theirs[1])
        if picked < max(first, theirs[0]):
            side = "broker" if theirs[1] < first else "client"
            raise UnsupportedVersion(
                f"no shared version of {info.name}: this client speaks {first} to {last}, "
                f"the broker {theirs[0]} to {theirs[1]}",
                broker=self._broker,
                api=info.name,
                hint=f"The {side} is too old for this.",
            )
        return picked
