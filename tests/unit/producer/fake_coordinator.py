"""A transaction coordinator and transactional partitions in memory, on the imaginary network of fake_cluster.

It does what Kafka's TransactionCoordinator does in versions 1 and 2, slowly enough that a client meets it in the middle: the
markers of a transaction arrive a while after EndTxn was answered, and until then everything else gets CONCURRENT_TRANSACTIONS.
Each request is encoded and decoded in the version that was negotiated, so a field that does not fit it fails.
"""

from __future__ import annotations

from collections import deque

from fake_cluster import FakeCore, FakePartition

from fastq._native.records import read_header
from fastq._native.wire import Reader, Writer
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitResponse,
)

LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, CONCURRENT, FENCED = 47, 48, 49, 51, 90


class TransactionalPartition(FakePartition):
    """A log that knows which records belong to which transaction, and what became of it."""

    def __init__(self):
        super().__init__()
        self.fates = []  # of each record: "open", "committed", "aborted"
        self.owners = []

    def append(self, data, max_bytes, refuse):
        header = read_header(data)
        assert header.is_transactional, "a batch outside of a transaction"
        before = len(self.records)
        error, offset = super().append(data, max_bytes, refuse)
        added = len(self.records) - before
        self.fates += ["open"] * added
        self.owners += [header.producer_id] * added
        return error, offset

    def marker(self, producer_id, epoch, committed):
        """The end of the producer's transaction in this partition."""
        for index, owner in enumerate(self.owners):
            if owner == producer_id and self.fates[index] == "open":
                self.fates[index] = "committed" if committed else "aborted"
        state = self.producers.get(producer_id)
        if state is None or epoch > state[0]:
            self.producers[producer_id] = [epoch, deque(maxlen=5)]

    def visible(self):
        """What a read_committed consumer sees."""
        return [record[0] for record, fate in zip(self.records, self.fates, strict=True) if fate == "committed"]


class Transaction:
    """The coordinator's state of one transactional id."""

    def __init__(self, producer_id):
        self.producer_id, self.epoch, self.last_epoch = producer_id, -1, -1
        self.state = "empty"  # empty, ongoing, prepare, complete
        self.committed = False
        self.partitions, self.groups = set(), set()
        self.pending_offsets = {}


class TransactionCore(FakeCore):
    """FakeCore with transactions. `version` is the cluster's transaction.version; `coordinator` the node that has them."""

    make_partition = TransactionalPartition

    def __init__(self, seed=0, *, transaction_version=2, marker_delay=0.01, **options):
        super().__init__(seed, **options)
        self.transaction_version = transaction_version
        for log in self.logs.values():
            log.first_is_zero = transaction_version >= 2
        self.features = {"transaction.version": transaction_version}
        self.marker_delay = marker_delay
        self.coordinator = 0
        self.transactions = {}
        self.committed_offsets = {}
        self.calls = []  # (api, version) of every request that was handled
        self.fail_next = {}  # api -> error codes for its next requests
        self.supported = {}  # api -> last version, where that is not the newest

    def is_connecting(self, node):
        return False

    def move_coordinator(self):
        self.coordinator = self.random.choice(list(self.metadata.nodes))

    # -- requests

    def _other(self, node, request, versions):
        api = ApiKey(request.API_KEY)
        info = APIS[api]
        low, high = versions or (info.min_version, info.max_stable_version)
        version = min(high, info.max_stable_version, self.supported.get(api, 99))
        assert version >= low, f"{api.name} {low}-{high}"
        writer = Writer()
        request.build(version).encode(writer, version)
        decoded = info.request_class().decode(Reader(writer.getvalue()), version)
        self.calls.append((api, version))
        answer = getattr(self, f"on_{api.name.lower()}")(node, decoded, version)
        writer = Writer()
        answer.encode(writer, version)
        return info.response_class().decode(Reader(writer.getvalue()), version)

    def _produce(self, node, encoded):
        self.calls.append((ApiKey.PRODUCE, encoded.version))
        return super()._produce(node, encoded)

    def trouble_for(self, api, node):
        """An error code that has nothing to do with the request, or 0."""
        planned = self.fail_next.get(api)
        if planned:
            return planned.pop(0)
        if node != self.coordinator:
            return NOT_COORDINATOR
        if self.random.random() < self.trouble / 2:
            return self.random.choice([LOADING, NOT_AVAILABLE])
        return 0

    def on_find_coordinator(self, node, request, version):
        code = (
            self.fail_next.get(ApiKey.FIND_COORDINATOR, [0]).pop(0) if ApiKey.FIND_COORDINATOR in self.fail_next else 0
        )
        if not self.fail_next.get(ApiKey.FIND_COORDINATOR):
            self.fail_next.pop(ApiKey.FIND_COORDINATOR, None)
        node_id = -1 if code else self.coordinator
        if version < 4:
            return FindCoordinatorResponse(error_code=code, node_id=node_id, host="h", port=1)
        (key,) = request.coordinator_keys
        entry = FindCoordinatorResponse.Coordinator(key=key, node_id=node_id, host="h", port=1, error_code=code)
        return FindCoordinatorResponse(coordinators=[entry])

    def on_init_producer_id(self, node, request, version):
        return InitProducerIdResponse(
            **dict(zip(("error_code", "producer_id", "producer_epoch"), self._init(node, request), strict=True))
        )

    def _init(self, node, request):
        code = self.trouble_for(ApiKey.INIT_PRODUCER_ID, node)
        if code:
            return code, -1, -1
        entry = self.transactions.get(request.transactional_id)
        if entry is None:
            entry = self.transactions[request.transactional_id] = Transaction(next(self.producer_ids))
        elif request.producer_id >= 0 and (request.producer_id, request.producer_epoch) not in (
            (entry.producer_id, entry.epoch),
            (entry.producer_id, entry.last_epoch),
        ):
            return FENCED, -1, -1
        if entry.state == "prepare":
            return CONCURRENT, -1, -1
        if entry.state == "ongoing":
            entry.epoch += 1  # who had it is fenced
            self._prepare(entry, False, entry.epoch)
            return CONCURRENT, -1, -1
        if request.producer_id >= 0 and request.producer_epoch == entry.last_epoch:
            return 0, entry.producer_id, entry.epoch  # again, because the answer was lost: the epoch is raised once
        entry.last_epoch, entry.epoch, entry.state = entry.epoch, entry.epoch + 1, "empty"
        return 0, entry.producer_id, entry.epoch

    def _check(self, api, node, transactional_id, producer_id, epoch):
        """(error code, the transaction)."""
        code = self.trouble_for(api, node)
        if code:
            return code, None
        entry = self.transactions.get(transactional_id)
        if entry is None or entry.producer_id != producer_id:
            return INVALID_MAPPING, entry
        return (0, entry) if entry.epoch == epoch else (FENCED, entry)

    def on_add_partitions_to_txn(self, node, request, version):
        assert self.transaction_version == 1 and version <= 3
        code, entry = self._check(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            node,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        wanted = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
        if not code and entry.state == "prepare":
            code = CONCURRENT
        if not code:
            self._ongoing(entry).partitions.update(wanted)
        results = [
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                ],
            )
            for name, index in wanted
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def on_add_offsets_to_txn(self, node, request, version):
        assert self.transaction_version == 1
        code, entry = self._check(
            ApiKey.ADD_OFFSETS_TO_TXN, node, request.transactional_id, request.producer_id, request.producer_epoch
        )
        if not code and entry.state == "prepare":
            code = CONCURRENT
        if not code:
            self._ongoing(entry).groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def on_txn_offset_commit(self, node, request, version):
        assert (version >= 5) == (self.transaction_version == 2)
        code, entry = self._check(
            ApiKey.TXN_OFFSET_COMMIT, node, request.transactional_id, request.producer_id, request.producer_epoch
        )
        if not code and self.transaction_version == 2:
            if entry.state == "prepare":
                code = CONCURRENT
            else:
                self._ongoing(entry).groups.add(request.group_id)
        assert code or request.group_id in entry.groups, "a group that was not added"
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                if not code:
                    place = (request.group_id, topic.name, part.partition_index)
                    entry.pending_offsets[place] = (part.committed_offset, request.member_id, part.committed_metadata)
            topics.append(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index, error_code=code
                        )
                        for part in topic.partitions
                    ],
                )
            )
        return TxnOffsetCommitResponse(topics=topics)

    def on_end_txn(self, node, request, version):
        assert (version >= 5) == (self.transaction_version == 2)
        code = self.trouble_for(ApiKey.END_TXN, node)
        entry = self.transactions.get(request.transactional_id)
        if not code and (entry is None or entry.producer_id != request.producer_id):
            code = INVALID_MAPPING
        if not code:
            code = self._end(entry, request, version)
        if code:
            return EndTxnResponse(error_code=code)
        if version >= 5:
            return EndTxnResponse(producer_id=entry.producer_id, producer_epoch=entry.epoch)
        return EndTxnResponse()

    def _end(self, entry, request, version):
        ended = entry.state in ("prepare", "complete")
        if (
            version >= 5
            and request.producer_epoch == entry.epoch - 1
            and ended
            and entry.committed == request.committed
        ):
            return 0  # again: the answer was lost
        if request.producer_epoch != entry.epoch:
            return FENCED
        if entry.state == "prepare":
            return CONCURRENT
        if entry.state == "ongoing":
            if version >= 5:
                entry.last_epoch, entry.epoch = entry.epoch, entry.epoch + 1
            self._prepare(entry, request.committed, entry.epoch)
            return 0
        if version >= 5:
            if request.committed:
                return INVALID_STATE
            entry.last_epoch, entry.epoch, entry.state, entry.committed = (
                entry.epoch,
                entry.epoch + 1,
                "complete",
                False,
            )
            return 0
        return 0 if entry.state == "complete" and entry.committed == request.committed else INVALID_STATE

    @staticmethod
    def _ongoing(entry):
        entry.state = "ongoing"
        return entry

    def _prepare(self, entry, committed, marker_epoch):
        entry.state, entry.committed = "prepare", committed

        def complete():
            for key in entry.partitions:
                self.logs[key].marker(entry.producer_id, marker_epoch, committed)
            if committed:
                self.committed_offsets.update(entry.pending_offsets)
            entry.state = "complete"
            entry.partitions.clear()
            entry.groups.clear()
            entry.pending_offsets.clear()

        self.at(self.marker_delay * self.random.random(), complete)

    # -- produce

    def _append(self, node, name, part, topic_id=None):
        header = read_header(bytes(part.records))
        entry = next((e for e in self.transactions.values() if e.producer_id == header.producer_id), None)
        assert entry is not None, "a batch of no transactional id"
        added = entry.state == "ongoing" and (name, part.index) in entry.partitions
        if self.leaders[name, part.index] == node and not added:
            known = self.logs[name, part.index].producers.get(header.producer_id)
            if header.producer_epoch < max(entry.epoch, known[0] if known else -1):
                return INVALID_EPOCH, -1
            if self.transaction_version == 1:
                return INVALID_STATE, -1
            if entry.state == "prepare":
                return CONCURRENT, -1
            self._ongoing(entry).partitions.add((name, part.index))
        return super()._append(node, name, part, topic_id)


def transactional_id_of(encoded):
    """Whose transaction a Produce request belongs to."""
    body = b"".join(bytes(buffer) for buffer in encoded.buffers)
    return ProduceRequest.decode(Reader(body), encoded.version).transactional_id
