"""Transactions: all that coordinators know, one of them, and those that nobody will end.

Rules: hanging ones are looked for when that is asked, as it asks the leaders about producers of every partition. Users of some topics
see the partitions of those.
"""

from __future__ import annotations

from starlette.responses import Response

from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.users import Role
from fastq.console.visit import Pager, Visit
from fastq.metadata import TopicPartition

LOOK_S = 30.0


async def transaction_list(visit: Visit) -> Response:
    """Transactional ids by state; with `hanging` also what hangs."""
    query, hanging = visit.text("q").strip(), None
    known = await visit.cluster.admin.list_transactions()
    rows = [one for one in known.values() if query.lower() in one.transactional_id.lower()]
    if visit.flag("hanging"):
        with visit.cluster.alone("the list of hanging transactions"):
            found = await visit.cluster.admin.find_hanging_transactions(timeout=LOOK_S)
        hanging = [one for one in found if visit.user.may_see(one.topic_partition.topic)]
    return visit.page("transactions.html", pager=Pager(visit, rows), q=query, hanging=hanging)


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
