"""The mirror: topics of one Kafka cluster copied to another, each record once, by a client of both.

Rules
- A client of both sides and nothing else: no broker imports it, and what it keeps is in topics of the target (`state.py`).
- What is decided is decided by functions without I/O (`names`, `topics`, `progress`, `same`, `translation`, `mm2`); `lane.py`,
  `same_lane.py`, `mirror.py` and `keeper.py` carry it out. Clock, pause and clients are parameters.
- Crash-only: every piece begins by reading what is committed, so a failure is answered by beginning again, and a kill at any moment
  leaves what an orderly stop leaves, but for the time until somebody else takes over.
"""

from fastq.lazy import lazy_names

TYPE_CHECKING = False  # as in fastq/__init__.py
if TYPE_CHECKING:
    from fastq.mirror.config import MirrorConfig as MirrorConfig
    from fastq.mirror.config import load_config as load_config
    from fastq.mirror.mirror import Mirror as Mirror

_WHERE = {
    "Mirror": "fastq.mirror.mirror",
    "MirrorConfig": "fastq.mirror.config",
    "load_config": "fastq.mirror.config",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
