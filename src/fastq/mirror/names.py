"""Which topics are mirrored, and what they are called in the target.

Rules: functions of names alone. Topics of Kafka's, of mirrors and of MirrorMaker 2 are never mirrored, but for MirrorMaker 2's
`heartbeats`, which always are and always with the alias before them: by them its tools know who mirrors whom. With prefixed names a topic
that came from the target by name is a loop and refused, however many clusters it went through. With identical names no name tells;
there the provenance that mirrors write down does (`topics.provenances`), by which `topics.plan` refuses a loop.
"""

from __future__ import annotations

import re

from fastq.mirror.config import MirrorConfig
from fastq.values import NamedTuple

HEARTBEATS = "heartbeats"
INTERNAL = re.compile(r"__.*|.*[-.]internal|.*\.replica|_schemas_internal")


def state_topic(source_alias: str) -> str:
    """The topic of the target that keeps what a mirror of `source_alias` has done."""
    return f"fastq-mirror.{source_alias}.internal"


class Names(NamedTuple):
    """How topics of the source are called in the target."""

    source: str
    target: str
    separator: str
    identity: bool

    @classmethod
    def of(cls, config: MirrorConfig) -> Names:
        return cls(
            config.source.alias, config.target.alias, config.options.separator, config.options.names == "identity"
        )

    def in_target(self, topic: str) -> str:
        """The name in the target of a topic of the source."""
        if self.identity and not self._is_heartbeats(topic):
            return topic
        return f"{self.source}{self.separator}{topic}"

    def in_source(self, topic: str) -> str | None:
        """The name in the source of a topic of the target; None for one that is not mirrored from there by its name."""
        prefix = self.source + self.separator
        bare = topic.removeprefix(prefix) if topic.startswith(prefix) else None
        if self.identity and (bare is None or not self._is_heartbeats(bare)):
            return topic
        return bare or None

    def goes_one_way(self, topic: str) -> bool:
        """Whether a topic of the target has the same name in no mirror the other way, though names are identical: heartbeats."""
        return self.identity and self.in_source(topic) != topic

    def _is_heartbeats(self, topic: str) -> bool:
        return topic == HEARTBEATS or topic.endswith(self.separator + HEARTBEATS)

    def comes_from_target(self, topic: str) -> bool:
        """Whether a topic of the source has gone through the target, by the aliases before its name. Identical names have none."""
        if self.identity and not self._is_heartbeats(topic):
            return False
        hops = topic.split(self.separator)[:-1]
        return self.target in hops

    def wanted(self, topic: str, config: MirrorConfig) -> bool:
        """Whether a topic of the source is one that the configuration asks for."""
        if topic == HEARTBEATS:
            return True
        if INTERNAL.fullmatch(topic):
            return False
        options = config.options
        return any(p.fullmatch(topic) for p in options.topics) and not any(p.fullmatch(topic) for p in options.exclude)
