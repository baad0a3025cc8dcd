"""Names that no package has, which type checkers are to report: checked by mypy --strict and never run.

Rule: a line whose error is not reported any more has an unused `type: ignore`, which is an error itself.
"""

from fastq import Prodcer as Prodcer  # type: ignore[attr-defined]
from fastq.admin import NewTopics as NewTopics  # type: ignore[attr-defined]
from fastq.consumer import Consumers as Consumers  # type: ignore[attr-defined]
from fastq.mirror import Mirrors as Mirrors  # type: ignore[attr-defined]
from fastq.observability import Exporter as Exporter  # type: ignore[attr-defined]
from fastq.producer import AsyncProducers as AsyncProducers  # type: ignore[attr-defined]
from fastq.protocol.messages import FetchRequests as FetchRequests  # type: ignore[attr-defined]
from fastq.schema_registry import AvroSerialiser as AvroSerialiser  # type: ignore[attr-defined]
from fastq.spark import read_topic as read_topic  # type: ignore[attr-defined]
from fastq.testing import Brokers as Brokers  # type: ignore[attr-defined]
