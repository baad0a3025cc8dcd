"""Transactions: all that coordinators know, one of them, and those that nobody will end.

Rules: hanging ones are looked for when that is asked, as it asks the leaders about producers of every partition. Users of some topics
see the partitions of those.
"""

from __future__ import annotations

from starlette.responses import Response

from fastq.admin.arguments import TRANSACTION_TIMEOUT_MAX_MS, clock_ms
from fastq.admin.transactions import hanging_shown, transactions_shown
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.users import Role
from fastq.console.visit import Pager, Visit
from fastq.metadata import TopicPartition

LOOK_S = 30.0


async def transaction_list(visit: Visit) -> Response:
    """Transactional ids by state; with `hanging` also what hangs."""
    query, hanging, unknown = visit.text("q").strip(), None, {}
    told = await visit.cluster.run(transactions_shown((), (), longer_than_ms=None, id_pattern=None))
    rows = [one for one in told.found.values() if query.lower() in one.transactional_id.lower()]
    if visit.flag("hanging"):
        with visit.cluster.alone("the list of hanging transactions"):
            looking = hanging_shown(None, None, max_timeout_ms=TRANSACTION_TIMEOUT_MAX_MS, clock_ms=clock_ms)
            looked = await visit.cluster.admin._client.run(looking, LOOK_S)
        hanging = [one for one in looked.hanging if visit.user.may_see(one.topic_partition.topic)]
        unknown = {tp: error for tp, error in looked.unknown.items() if visit.user.may_see(tp.topic)}
    return visit.page(
        "transactions.html", pager=Pager(visit, rows), q=query, hanging=hanging, unknown=unknown, silent=told.silent
    )


async def transaction(visit: Visit) -> Response:
    """A transactional id with what its transaction has touched."""
    name = visit.text("id", 32_767)
    found = (await visit.cluster.admin.describe_transactions([name]))[name].result()
    partitions = [tp for tp in found.partitions if visit.user.may_see(tp.topic)]
    return visit.page("transaction.html", found=found, partitions=partitions)


async def abort(visit: Visit) -> Response:
    """Abort the transaction that began at an offset of a partition: what hangs, nobody else ends."""
    place = TopicPartition(visit.seen(visit.text("topic", 249)), visit.number("partition", high=2**31 - 1))
    start = visit.number("start")
    await visit.cluster.admin.abort_open_transaction(place, start)
    visit.audit("abort transaction", topic=place.topic, partition=place.partition, start_offset=start)
    return visit.result("Abort transaction", [(f"{place} from offset {start:,}", None)], visit.url("transactions"))


ROUTES: Routes = [
    ("GET", CLUSTER + "/transactions", Role.VIEWER, transaction_list),
    ("GET", CLUSTER + "/transaction", Role.VIEWER, transaction),
    ("POST", CLUSTER + "/transactions/abort", Role.ADMIN, abort),
]
