"""The log of the active controller about partitions and replicas that are in another state: one line each, as `key=value`.

Rules: they have a logger of their own, `fastq_broker.state_change`, to be switched by its name. A transition is a line of level DEBUG, and
INFO where a partition that was there before loses its leader or has one again: of these LINES_MAX a change, and a line with the number of
the others. A change of many partitions is told in pieces, one a turn of the loop.
Source: Kafka's state-change.log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from .states import PartitionState, Transition, transitions

if TYPE_CHECKING:
    from .image import MetadataDelta, MetadataImage

logger = logging.getLogger("fastq_broker.state_change")

LINES_MAX: Final = 20
PIECE: Final = 200
_BETWEEN = frozenset({PartitionState.ONLINE, PartitionState.OFFLINE})


class StateLog:
    """Tells what changes of the metadata do to states, while `is_active` says that this node is the active controller. Loop thread only."""

    def __init__(self, image: MetadataImage, is_active: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        self._known = image
        self._is_active = is_active
        self._loop = loop

    def changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow a committed change."""
        before, self._known = self._known, image
        if (
            logger.isEnabledFor(logging.INFO)
            and self._is_active()
            and (delta.changed_topics or delta.deleted_topics or delta.changed_brokers)
        ):
            self._tell(transitions(before, image), 0)

    def _tell(self, found: Iterator[Transition], told: int) -> None:
        """The next ones; `told`: how many of this change were worth INFO."""
        piece = list(islice(found, PIECE))
        for transition in piece:
            loud = transition.before in _BETWEEN and transition.after in _BETWEEN
            told += loud
            logger.log(logging.INFO if loud and told <= LINES_MAX else logging.DEBUG, "%s", transition)
        if len(piece) == PIECE:
            self._loop.call_soon(partial(self._tell, found, told))
        elif told > LINES_MAX:
            logger.info("%d partitions more went between Online and Offline by this change", told - LINES_MAX)
