"""What a consumer's arguments without a name mean: settings, topics by name, or a pattern.

Rule: what can be none of them is refused here, with what was meant, perhaps; nothing is asked of a broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastq.consumer.config import ConsumerConfig
from fastq.metadata import is_topic_name


def settings_and_topics(given: tuple[Any, ...]) -> tuple[Mapping[str, Any] | ConsumerConfig | None, tuple[Any, ...]]:
    """The arguments of a consumer without a name: settings first, if there are any, then topics."""
    if given and isinstance(given[0], (Mapping, ConsumerConfig)):
        return given[0], given[1:]
    return None, given


def _check_topic(topic: Any) -> None:
    if isinstance(topic, (Mapping, ConsumerConfig)):
        raise TypeError("settings come first: Consumer({'group.id': 'billing'}, 'orders')")
    if not isinstance(topic, str) or not topic:
        raise TypeError(f"a topic is named by a non-empty str, got {topic!r}")
    if not is_topic_name(topic):
        hint = f"; for the brokers' addresses write bootstrap_servers={topic!r}" if ":" in topic else ""
        raise ValueError(
            f"{topic!r} is no name of a topic: up to 249 letters, digits, dots, underscores and hyphens{hint}"
        )


def topics_and_pattern(topics: Sequence[Any]) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    """Topics by name, or the one pattern: compiled, or a string that begins with ^, which no name does."""
    if (
        len(topics) == 1
        and isinstance(topics[0], Iterable)
        and not isinstance(topics[0], (str, bytes, bytearray, Mapping))
    ):
        topics = tuple(topics[0])
    patterns = [topic for topic in topics if isinstance(topic, re.Pattern) or str(topic).startswith("^")]
    if patterns:
        if len(topics) > 1:
            raise TypeError(f"a subscription is either topics by name or one pattern, got {topics!r}")
        try:
            return (), re.compile(patterns[0])
        except re.error as error:
            raise ValueError(f"the pattern {patterns[0]!r} is not a regular expression: {error}") from error
    for topic in topics:
        _check_topic(topic)
    return tuple(dict.fromkeys(topics)), None
