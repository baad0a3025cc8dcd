"""What a broker has in its files, for the tests of producers."""

from fastq._native.records import decode_records, iter_headers


class Log:
    """What the broker stored of a topic, read from its segment files."""

    def __init__(self, broker, topic):
        self.broker, self.topic = broker, topic

    def partitions(self):
        """The records by partition."""
        found = {}
        for directory in sorted(self.broker.data_dir.glob(f"{self.topic}-*[0-9]")):  # not those that are being deleted
            records = []
            for segment in sorted(directory.glob("*.log")):
                data = segment.read_bytes()
                for position, _header in iter_headers(data):
                    records.extend(decode_records(data, position))
            found[int(directory.name.rsplit("-", 1)[1])] = records
        return found

    def values(self):
        """The values, partition after partition."""
        return [record.value for records in self.partitions().values() for record in records]
