"""What calls are given and cannot take: told in words before anything is asked, by the blocking client and by asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq.admin import (
    Admin,
    AsyncAdmin,
    ClientQuotaEntity,
    ConfigResource,
    OffsetReset,
    ResourceType,
)

TOPIC = ConfigResource.topic("t")
Ask = Callable[[Any], Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda admin: admin.list_topics(timeout=10**400), "a float can hold"),
        (lambda admin: admin.create_partitions({"t": 2}, timeout=-(10**400)), "a float can hold"),
        (lambda admin: admin.describe_acls("User:alice"), "an AclFilter"),
        (lambda admin: admin.create_acls(["User:alice"]), "a list of Acl"),
        (lambda admin: admin.delete_acls(["User:alice"]), "a list of AclFilter"),
        (lambda admin: admin.describe_client_quotas("alice"), "a ClientQuotaFilter"),
        (lambda admin: admin.alter_client_quotas({"alice": {}}), "a list of ClientQuotaEntity"),
        (lambda admin: admin.alter_client_quotas({ClientQuotaEntity({"user": "alice"}): 5}), "a mapping"),
        (lambda admin: admin.set_configs(TOPIC, "retention.ms=5"), "a mapping"),
        (lambda admin: admin.alter_configs({TOPIC: "retention.ms=5"}), "a mapping"),
        (lambda admin: admin.incremental_alter_configs({TOPIC: None}), "changes of"),
        (lambda admin: admin.list_config_resources(["TOPIC"]), "the type of a resource"),
        (lambda admin: admin.describe_configs([ConfigResource(ResourceType.BROKER, "one")]), "settings of a broker"),
        (lambda admin: admin.api_versions(-1), "the id of a broker"),
        (lambda admin: admin.describe_features("1"), "the id of a broker"),
        (lambda admin: admin.describe_log_dirs([-1]), "the id of a broker"),
        (lambda admin: admin.describe_log_dirs(topics="logs"), "a list of names"),
        (lambda admin: admin.find_hanging_transactions(max_transaction_timeout_ms=None), "the longest that"),
    ],
)
def test_it_is_told_what_was_wrong(broker: FakeBroker, ask: Ask, words: str) -> None:
    with (
        Admin(bootstrap_servers=broker.address, default_api_timeout_ms=3000) as admin,
        pytest.raises((TypeError, ValueError), match=words),
    ):
        ask(admin)

    async def main() -> None:
        async with AsyncAdmin(bootstrap_servers=broker.address, default_api_timeout_ms=3000) as admin:
            with pytest.raises((TypeError, ValueError), match=words):
                await ask(admin)

    asyncio.run(main())


@pytest.mark.parametrize("topics", ["logs", [None]])
def test_topics_of_a_reset_are_names(topics: Any) -> None:
    """None was left out by the broker, so it was told, and a name was as many topics as it has letters."""
    from operation_world import World

    from fastq.admin.groups import reset_group_offsets
    from fastq.protocol import messages as m

    def node(request: Any) -> Any:
        if isinstance(request, m.FindCoordinatorRequest):
            answer = m.FindCoordinatorResponse.Coordinator(key="g", node_id=1, host="h", port=1)
            return m.FindCoordinatorResponse(coordinators=[answer])
        return m.OffsetFetchResponse()

    with pytest.raises(TypeError, match="a list of names"):
        World({1: node}).run(
            reset_group_offsets("g", OffsetReset.to_latest(), None, topics, dry_run=True, timeout_ms=1000)
        )
