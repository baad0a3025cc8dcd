"""What a form's page has shown of what the form changes, and whether that is so still.

Rules: a form carries what its page has shown, and it is looked at again before it is changed: where somebody else was there first, nothing
is done, and what differs is told. Between that look and the change there is a moment which Kafka has nothing against. A form without it is
a program's, which says what it wants whatever there is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fastq.console.picture import topic_at_a_glance
from fastq.console.visit import BadValue, Visit

if TYPE_CHECKING:
    from fastq.admin import ConfigEntry, ConfigSource

SEEN_MAX = 1 << 20
VALUE_SHOWN_MAX = 200
Settings = dict[str, "str | None"]


class Changed(Exception):
    """What a form would change is not what its page has shown. `again` is the page that shows it now, where the form's own, a plan, cannot;
    empty elsewhere."""

    def __init__(self, what: str, then: object, now: object, again: str = "") -> None:
        super().__init__(
            f"Nothing was done: {what} is {_shown(now)} now, and was {_shown(then)} when this form was made. "
            "Open the page again, to see what was changed meanwhile."
        )
        self.again = again


def _shown(value: object) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"


def check_same(what: str, then: object, now: object, again: str = "") -> None:
    """Raises Changed where the two are not the same; None: it is not there."""
    if then != now:
        raise Changed(what, then, now, again)


async def check_topic(visit: Visit, name: str) -> None:
    """Raises Changed where a topic of this name was deleted and made again since: it is another one, with other records."""
    then = visit.text("topic_id", 40)
    if then:
        described = (await visit.cluster.run(topic_at_a_glance(name)))[name].result()
        check_same(f"the topic {name} was deleted and made again: its id", then, described.topic_id.hex())


def set_here(entries: Iterable[ConfigEntry], source: ConfigSource) -> Settings:
    """The settings that somebody has set at one place, with what is set there, which another place may hide; but no secret."""
    return {
        entry.name: None if entry.is_sensitive else found.value
        for entry in entries
        for found in entry.synonyms
        if found.source is source and found.name == entry.name
    }


def written(settings: Mapping[str, Settings]) -> str:
    """Settings of some places, for a form: as `check_setting` reads them."""
    return json.dumps(settings, separators=(",", ":"))


def check_setting(visit: Visit, place: str, key: str, now: Settings) -> None:
    """Raises Changed where a setting is another one than `seen` says that a form has; BadValue."""
    text = visit.text("seen", SEEN_MAX)
    if not text:
        return
    try:
        then = json.loads(text)[place]
        before = then.get(key)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadValue("seen is what the page has shown: open it again, and send its form as it is") from None
    check_same(key, before, now.get(key))
