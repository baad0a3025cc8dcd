"""The mirror: the topics with events are copied to a second broker, the other data centre.

    python -m pipeline.mirror --servers 127.0.0.1:9092 --far-servers 127.0.0.1:9093 --home pipeline-data

Rules: a copy has the topic, the partition, the key and the value of the original, in its order, once. Offsets differ, as the
ends of transactions take some; times are those of the copy, as Spark's sinks have no column for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fastq import Admin
from fastq.admin import NewTopic
from fastq.errors import TopicAlreadyExists
from pipeline.jobs import Job

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def create_copies(near: str, far: str, pattern: str) -> None:
    """The topics there as they are here: the same names and numbers of partitions."""
    with Admin(bootstrap_servers=near) as admin:
        names = [name for name in admin.list_topics() if re.fullmatch(pattern, name)]
        found = admin.describe_topics(names).results()
    topics = [NewTopic(name=name, partitions=len(topic.partitions)) for name, topic in found.items()]
    with Admin(bootstrap_servers=far) as admin:
        for error in admin.create_topics(topics).errors.values():
            if not isinstance(error, TopicAlreadyExists):
                raise error


def main() -> None:
    job = Job("mirror")
    create_copies(job.servers, job.far_servers, job.workload.TOPICS)

    def start() -> StreamingQuery:
        return (
            job.source()
            .select("topic", "partition", "key", "value")
            .writeStream.format("fastq")
            .queryName("mirror")
            .option("kafka.bootstrap.servers", job.far_servers)
            .option("delivery", "exactly-once")
            .option("checkpointLocation", job.checkpoint())
            .start()
        )

    job.run(start)


if __name__ == "__main__":
    main()
