"""What would protect and is not honoured here is an error at the start, never a warning: nobody shall believe in a lock that is not there.

Rules
- A setting protects when its row says so (`ConfigKey.protects`) and its value is not the default; so do a listener's own
  settings of TLS and SASL.
- So do records of the metadata: ACLs, SCRAM credentials, quotas, delegation tokens, and dynamic settings of brokers.
- `--insecure-ignore NAME` is the only way past one of them, by its name (KINDS for records), and is said at each start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastq.errors import ConfigError

from .config_keys import ConfigValue, ResourceType
from .config_listeners import PREFIX
from .config_table import BROKER_KEYS

if TYPE_CHECKING:
    from .controller import MetadataDelta, MetadataImage

logger = logging.getLogger(__name__)

_LISTENER_PARTS = ("ssl.", "sasl.", ".sasl.", "principal.builder.class", "connections.max.reauth.ms", "max.connection")
"""What protects of the settings of one listener: beginnings, or with a dot before them anything within."""
KINDS = {
    "acl": ("acls", "ACLs", "this broker authorizes nobody, so whoever connects may do everything"),
    "scram": ("scram", "SCRAM credentials", "this broker authenticates nobody"),
    "quota": ("quotas", "quotas", "this broker enforces no quotas"),
    "token": ("delegation.tokens", "delegation tokens", "this broker authenticates nobody"),
}
"""Kinds of records that the image keeps as they came: the name for --insecure-ignore, what they are, and what is missing."""


def protects(name: str, value: ConfigValue) -> bool:
    """Whether a setting, with this parsed value, asks for something that protects and is not honoured."""
    if name.startswith(PREFIX):
        rest = name[len(PREFIX) :].partition(".")[2]
        return rest.startswith(_LISTENER_PARTS) or ".sasl." in rest
    key = BROKER_KEYS.get(name)
    return key is not None and key.protects and value != key.default


def refuse_setting(name: str) -> ConfigError:
    """The error for one that is set."""
    key = BROKER_KEYS.get(name)
    why = key.note if key is not None else "one listener has no such setting of its own here"
    return ConfigError(
        f"{name} is set, which would protect, and is not honoured: {why}. Remove it, or start the broker with --insecure-ignore {name} "
        "to run without that protection"
    )


def check_ignored(names: Iterable[str]) -> frozenset[str]:
    """The names of --insecure-ignore; ConfigError for one that is nothing to ignore, so that a slip of the pen ignores nothing else."""
    kinds = {kind for kind, _, _ in KINDS.values()}
    known = {name for name, key in BROKER_KEYS.items() if key.protects} | kinds
    for name in names:
        if name not in known and not protects(name, None):
            import difflib

            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = (
                f"did you mean {nearest[0]}?" if nearest else f"it takes such a setting, or {', '.join(sorted(kinds))}"
            )
            raise ConfigError(f"--insecure-ignore {name}: that is nothing which protects and is not honoured; {hint}")
    return frozenset(names)


def unprotected(image: MetadataImage, ignored: frozenset[str]) -> list[str]:
    """What of the metadata would protect, is not honoured and may be ignored, in words. ConfigError names what may not be.

    Comes before anything is written, so that the directory stays as it is.
    """
    found = _found(image)
    refused = [item for item in found if item[0] not in ignored]
    if refused:
        whats = "; ".join(f"{what} ({why})" for _, what, why in refused)
        arguments = " ".join(f"--insecure-ignore {name}" for name, _, _ in refused)
        raise ConfigError(
            f"the directory's metadata has what would protect and is not honoured: {whats}. Open it with a broker that honours it (Apache "
            f"Kafka) and remove it there, or start this one with {arguments} to run without that protection"
        )
    return [f"{name} ({what})" for name, what, _ in found]


class Watch:
    """Warns of what would protect and came into the metadata after the start, as another node's controller can write it: once a kind, as it
    is not honoured and this node goes on. Loop thread only."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._said = {name for name, _, _ in _found(image)}

    def changed(self, image: MetadataImage, _delta: MetadataDelta) -> None:
        """Follow a committed change."""
        before, self._image = self._image, image
        if image.kept is before.kept and image.configs is before.configs:
            return
        for name, what, why in _found(image):
            if name not in self._said:
                self._said.add(name)
                logger.warning(
                    "the metadata has got what would protect and is not honoured here: %s (%s). Remove it, or take this node out of the "
                    "cluster; its next start asks for --insecure-ignore %s",
                    what,
                    why,
                    name,
                )


def _found(image: MetadataImage) -> list[tuple[str, str, str]]:
    """What of the metadata would protect and is not honoured: the name for --insecure-ignore, what it is, and what is missing."""
    counts: dict[str, int] = {}
    for key in image.kept:
        if isinstance(key, tuple) and key[0] in KINDS:
            counts[key[0]] = counts.get(key[0], 0) + 1
    found: list[tuple[str, str, str]] = []
    for kind, count in counts.items():
        name, what, why = KINDS[kind]
        found.append((name, f"{count} {what}", why))
    for (resource_type, resource), values in image.configs.items():
        if resource_type == ResourceType.BROKER:
            found += [
                (
                    name,
                    f"the dynamic setting {name} of {f'broker {resource}' if resource else 'all brokers'}",
                    "it is not honoured",
                )
                for name, text in values.items()
                if protects(name, _parsed(name, text))
            ]
    return found


def _parsed(name: str, text: str) -> ConfigValue:
    key = BROKER_KEYS.get(name)
    try:
        return key.parse(text) if key is not None else text
    except ConfigError:
        return text


def warning_of(names: Iterable[str]) -> str:
    """The one line of a start that goes past them."""
    return f"INSECURE: ignored as --insecure-ignore asks, this broker runs without that protection: {', '.join(names)}"
