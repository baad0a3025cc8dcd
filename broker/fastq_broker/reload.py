"""SIGHUP: the configuration file is read again, and what may change of it counts at once.

Rules
- What AlterConfigs may alter may change, and counts as if the broker had been started with it: nothing is written to the metadata, and
  what was altered there stands above the file, as at a start (KIP-226).
- A file that cannot be read, or has anything that a start would refuse, changes nothing, and is named with the reason. So does a pipe,
  which a start may read: once read it is empty, as if every setting were its default, or it holds the loop up until somebody writes.
- What counts only from the next start on is named in one line, each time, as long as the file and the broker differ. Names of hosts are
  among it, and not looked up: the loop would wait for a name server.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fastq.errors import ConfigError, FastqError

from .config import BrokerConfig, effective
from .config_keys import ConfigType, ConfigValue, Status
from .config_mirror import differing_sources
from .config_table import BROKER_KEYS, DONE, TARGETS
from .config_table_cluster import CLUSTER

if TYPE_CHECKING:
    from .controller import Controller

logger = logging.getLogger(__name__)


def may_change(name: str) -> bool:
    """Whether a setting may be another while the broker runs; an older name may when the one that it stands for may."""
    return BROKER_KEYS[TARGETS[name][0] if name in TARGETS else name].dynamic


def differing(old: BrokerConfig, new: BrokerConfig) -> tuple[list[str], list[str]]:
    """The settings that are not the same: those that may change, and those that count from the next start on. What has no effect is in
    neither."""
    names = sorted(
        name
        for name in {*old.settings, *new.settings}
        if old.settings.get(name) != new.settings.get(name) and BROKER_KEYS[name].status is not Status.IGNORED
    )
    waiting = [name for name in names if not may_change(name)]
    waiting += differing_sources(old.mirror_sources, new.mirror_sources)
    return [name for name in names if may_change(name)], waiting


def merged(old: BrokerConfig, new: BrokerConfig, names: Iterable[str]) -> BrokerConfig:
    """The old settings, with these as in the new ones."""
    settings = dict(old.settings)
    for name in names:
        if name in new.settings:
            settings[name] = new.settings[name]
        else:
            settings.pop(name, None)
    values = {key.attribute: effective(key.name, settings) for key in (*DONE, *CLUSTER) if key.dynamic}
    return replace(old, settings=settings, **values)


def _check_is_file(path: str) -> None:
    """Raises ConfigError for what cannot be read twice. What is not there is for who reads it."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError("it is no file (a pipe?), and is read at the start alone: give --config the name of a file")


class Reloader:
    """Reads the file of a broker again. Loop thread only."""

    def __init__(
        self,
        controller: Controller,
        path: str | None,
        overrides: Mapping[str, ConfigValue],
        insecure_ignore: Iterable[str],
    ) -> None:
        """`path`: the file, None where the broker has none; `overrides` win over it, as at the start."""
        self._controller = controller
        self._path = path
        self._overrides = dict(overrides)
        self._insecure_ignore = tuple(insecure_ignore)

    def reload(self) -> bool:
        """Read the file, and have what may change take effect; whether the file was good."""
        if self._path is None:
            logger.info("SIGHUP changes nothing: this broker was started without a file of settings (--config)")
            return True
        try:
            _check_is_file(self._path)
            new = BrokerConfig.read(self._path, self._overrides, insecure_ignore=self._insecure_ignore, looks_up=False)
        except (FastqError, ValueError) as error:
            logger.error("SIGHUP: %s is not taken, and nothing has changed: %s", self._path, error)
            return False
        old = self._controller.config
        for warning in new.warnings:
            if warning not in old.warnings:
                logger.warning("SIGHUP: %s", warning)
        changed, waiting = differing(old, new)
        if changed:
            self._controller.reconfigure(merged(old, new, changed))
            logger.info("SIGHUP: of %s counts from now on: %s", self._path, "; ".join(map(self._shown, changed)))
        else:
            logger.info("SIGHUP: %s has nothing new that may change", self._path)
        if waiting:
            logger.warning(
                "SIGHUP: these settings of %s count from the next start on: %s", self._path, ", ".join(waiting)
            )
        return True

    def _shown(self, name: str) -> str:
        """A setting as it is now, and whether something stands above it."""
        layers = self._controller.layers
        config = layers.config
        if BROKER_KEYS[name].type is ConfigType.PASSWORD:
            value = "[hidden]"
        elif name in config.settings:
            value = BROKER_KEYS[name].render(config.settings[name]) or ""
        else:
            value = "its default"
        above = name in layers.this_broker or name in layers.all_brokers
        return f"{name}={value}" + (" (which was altered by AlterConfigs, and that stands above it)" if above else "")
