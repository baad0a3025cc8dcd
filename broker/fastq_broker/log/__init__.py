"""The log: Kafka's segment files, written, read, recovered and expired. `LogManager` is the door."""

from .cleaner import LogCleaner
from .config import UNLIMITED, CleanerConfig, LogConfig
from .failures import FailureReports, failures
from .files import Files
from .log_appends import AppendResult
from .log_dir import LogDir, system_monotonic_ms
from .log_manager import LogManager
from .partition_log import PartitionLog
from .scan import CorruptSegment, LogSlice
from .timestamps import TimestampOffset, TimestampQuery

__all__ = [
    "UNLIMITED",
    "AppendResult",
    "CleanerConfig",
    "CorruptSegment",
    "FailureReports",
    "Files",
    "LogCleaner",
    "LogConfig",
    "LogDir",
    "LogManager",
    "LogSlice",
    "PartitionLog",
    "TimestampOffset",
    "TimestampQuery",
    "failures",
    "system_monotonic_ms",
]
