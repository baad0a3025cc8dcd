"""What would protect and is not honoured ends the start, unless somebody says that it may be ignored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster.node import ClusterNode
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ConfigType, ResourceType, Status
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.controller import Controller
from fastq_broker.controller.config_changes import ConfigChange, ResourceChange

from fastq.errors import ConfigError
from fastq.protocol.messages import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)

ASKS = [
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:admin"),
    ("allow.everyone.if.no.acl.found", "true"),
    ("security.inter.broker.protocol", "SSL"),
    ("sasl.enabled.mechanisms", "PLAIN"),
    ("sasl.jaas.config", "secret-word"),
    ("ssl.client.auth", "required"),
    ("ssl.keystore.location", "/x"),
    ("connections.max.reauth.ms", "1000"),
    ("delegation.token.secret.key", "secret-word"),
    ("client.quota.callback.class", "a.B"),
    ("quota.window.num", "3"),
    ("quota.producer.default", "1000"),
    ("max.connection.creation.rate", "10"),
    ("create.topic.policy.class.name", "a.B"),
    ("alter.config.policy.class.name", "a.B"),
    ("remote.log.storage.system.enable", "true"),
    ("principal.builder.class", "a.B"),
    ("listener.name.inside.ssl.keystore.location", "/x"),
    ("listener.name.inside.scram-sha-256.sasl.jaas.config", "secret-word"),
    ("listener.name.inside.max.connection.creation.rate", "5"),
]


@pytest.mark.parametrize(("name", "value"), ASKS)
def test_a_setting_that_would_protect_is_refused_and_may_be_ignored_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_mapping({name: value})
    assert name in str(caught.value) and f"--insecure-ignore {name}" in str(caught.value)
    assert "secret-word" not in str(caught.value)
    config = BrokerConfig.from_mapping({name: value}, insecure_ignore=[name])
    assert config.unprotected == (name,)
    assert config.warnings == ()
    with pytest.raises(ConfigError):
        BrokerConfig.from_mapping({name: value}, insecure_ignore=["acls"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", ""),
        ("allow.everyone.if.no.acl.found", "false"),
        ("security.inter.broker.protocol", "PLAINTEXT"),
        ("ssl.client.auth", "none"),
        ("num.network.threads", "3"),
        ("controlled.shutdown.enable", "true"),
        ("listener.name.inside.num.network.threads", "3"),
    ],
)
def test_a_default_asks_for_nothing(name: str, value: str) -> None:
    config = BrokerConfig.from_mapping({name: value})
    assert config.unprotected == ()
    assert len(config.warnings) == 1


def test_every_key_of_tls_and_sasl_protects() -> None:
    unmarked = {
        name
        for name, key in BROKER_KEYS.items()
        if key.status is Status.IGNORED
        and (name.startswith(("ssl.", "sasl.", "delegation.", "quota.")) or key.type is ConfigType.PASSWORD)
        and not key.protects
    }
    assert all(name.startswith(("password.encoder.", "zookeeper.")) for name in unmarked), unmarked
    assert all(key.status is Status.IGNORED for key in BROKER_KEYS.values() if key.protects)


@pytest.mark.parametrize("listener", ["SSL://:0", "SASL_PLAINTEXT://:0", "SASL_SSL://:0", "INSIDE://:0"])
def test_a_listener_that_wants_more_than_plain_is_refused(listener: str) -> None:
    protocols = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,INSIDE:SASL_SSL"
    with pytest.raises(ConfigError, match="nothing is served in the clear"):
        BrokerConfig.from_mapping({"listeners": listener, "listener.security.protocol.map": protocols})
    assert BrokerConfig.from_mapping({"listener.security.protocol.map": protocols}).unprotected == ()


@pytest.mark.parametrize("name", ["authoriser.class.name", "num.io.threads", "acl", "listener.name.x.num.io.threads"])
def test_only_what_protects_can_be_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--insecure-ignore {name}"):
        BrokerConfig.from_mapping({}, insecure_ignore=[name])


# --- what the directory's metadata has ---


def controller(directory: Path, *ignore: str) -> Controller:
    settings = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:9092"}
    return Controller(BrokerConfig.from_mapping(settings, insecure_ignore=ignore), clock=lambda: 1_700_000_000_000)


ACL = AccessControlEntryRecord(
    id=bytes(15) + b"\1",
    resource_type=2,
    resource_name="t",
    pattern_type=3,
    principal="User:a",
    host="*",
    operation=3,
    permission_type=3,
)
SCRAM = UserScramCredentialRecord(name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096)
QUOTA = ClientQuotaRecord(
    entity=[ClientQuotaRecord.EntityData(entity_type="user", entity_name="a")], key="producer_byte_rate", value=1.0
)
TOKEN = DelegationTokenRecord(
    owner="User:a",
    requester="User:a",
    renewers=[],
    issue_timestamp=1,
    max_timestamp=2,
    expiration_timestamp=2,
    token_id="t",
)
DYNAMIC = ConfigRecord(
    resource_type=int(ResourceType.BROKER), resource_name="", name="max.connection.creation.rate", value="5"
)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (ACL, "acls"),
        (SCRAM, "scram"),
        (QUOTA, "quotas"),
        (TOKEN, "delegation.tokens"),
        (DYNAMIC, "max.connection.creation.rate"),
    ],
    ids=["acls", "scram", "quotas", "tokens", "dynamic"],
)
def test_what_the_metadata_has_is_refused_before_anything_is_written(tmp_path: Path, record: Any, name: str) -> None:
    first = controller(tmp_path)
    first.open()
    first._commit([record])
    first.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".snapshot"}
    refused = controller(tmp_path)
    with pytest.raises(ConfigError, match=f"--insecure-ignore {name}"):
        refused.open()
    assert {path: path.read_bytes() for path in before} == before
    ignoring = controller(tmp_path, name)
    ignoring.open()
    assert len(ignoring.unprotected) == 1 and ignoring.unprotected[0].startswith(name)
    ignoring.close()


def test_a_setting_that_would_protect_cannot_be_altered_into_force(tmp_path: Path) -> None:
    def alter(ignore: list[str], value: str) -> int:
        opened = controller(tmp_path, *ignore)
        opened.open()
        change = ConfigChange("max.connection.creation.rate", 0, value)
        (result,) = opened.alter_configs([ResourceChange(int(ResourceType.BROKER), "", [change])])
        opened.close()
        return int(result.error)

    assert alter([], "5") == 42
    assert alter([], str(2**31 - 1)) == 0
    assert alter(["max.connection.creation.rate"], "5") == 0


def test_a_node_among_others_refuses_what_it_knows_and_warns_once_of_what_comes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller only does not wait for the metadata: what it has not heard of yet at its start comes later too."""
    known = controller(tmp_path)
    known.open()
    node: Any = SimpleNamespace(is_broker=False, _ports=SimpleNamespace(controller=known), _config=known.config)
    asyncio.run(ClusterNode.caught_up(node))
    assert known.unprotected == [] and not caplog.records
    for record in (QUOTA, ACL, SCRAM, DYNAMIC):
        known._commit([record])
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    names = ("quotas", "acls", "scram", "max.connection.creation.rate")
    assert [line.rsplit(" ", 1)[1] for line in told] == list(names)
    known._commit([ClientQuotaRecord(entity=QUOTA.entity, key="consumer_byte_rate", value=1.0)])
    assert len(caplog.records) == len(told)
    with pytest.raises(ConfigError, match="--insecure-ignore acls"):
        asyncio.run(ClusterNode.caught_up(node))
    known.close()
