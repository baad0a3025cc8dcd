"""SCRAM credentials and quotas: what is refused before anything is sent, and what a small broker is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from admin_fakes import answer_once
from net_fakes import FakeBroker

from fastq.admin import (
    Admin,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaMatch,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from fastq.errors import ResourceNotFound, UnacceptableCredential
from fastq.protocol import messages as m

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def admin(broker: FakeBroker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address) as admin:
        yield admin


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alice", "s3cret", SHA_256, 4095), "4,096 to 10,000,000, got 4,095"),
        (("alice", "s3cret", SHA_256, 10_000_001), "got 10,000,001"),
        (("alice", "", SHA_256), "the password of 'alice' is empty"),
        (("alice", "s3cret\u00a0", SHA_256), "RFC 4013"),
        (("alice", "s3cret\u017f", SHA_256), "RFC 4013"),
        (("ali\u00adce", "s3cret", SHA_256), "RFC 4013"),
        (("alice", "s3cret\n", SHA_256), "RFC 4013"),
        (("alice", "s3cret", ScramMechanism.UNKNOWN), "SCRAM_SHA_256 or SCRAM_SHA_512"),
        (("alice", "s3cret", SHA_256, 4096, b""), "a salt has bytes"),
    ],
)
def test_what_is_no_credential(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        UserScramCredentialUpsertion(*arguments)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("alice", b"s3cret"),
        (1, "s3cret"),
        ("alice", "s3cret", 1),
        ("a", "s3cret", SHA_256, 1e4),
        ("alice", SHA_256, "s3cret"),  # as another client orders them
        ("alice", "s3cret", SHA_256, "s3cret"),
    ],
)
def test_values_of_other_kinds_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError) as refused:
        UserScramCredentialUpsertion(*arguments)
    assert "s3cret" not in str(refused.value)


def test_no_secret_is_shown() -> None:
    assert repr(UserScramCredentialUpsertion("alice", "s3cret", salt=b"pepper")) == (
        "UserScramCredentialUpsertion(user='alice', mechanism=<ScramMechanism.SCRAM_SHA_512: 2>, iterations=4096)"
    )


def test_a_mechanism_after_the_other_until_a_user_has_an_error(admin: Admin, broker: FakeBroker) -> None:
    result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    answers = [
        m.AlterUserScramCredentialsResponse(results=[result(user="a", error_code=0), result(user="b", error_code=93)]),
        m.AlterUserScramCredentialsResponse(results=[result(user="a", error_code=0)]),
    ]
    asked = answer_once(broker, m.AlterUserScramCredentialsRequest.API_KEY, *answers)
    outcomes = admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion("a", "s3cret", SHA_256, 5000, b"pepper"),
            UserScramCredentialUpsertion("b", "s3cret", SHA_256),
            UserScramCredentialDeletion("a", SHA_512),
            UserScramCredentialUpsertion("b", "s3cret", SHA_512),
        ]
    )
    assert list(outcomes) == ["a", "b"]
    assert outcomes["a"].error is None and isinstance(outcomes["b"].error, UnacceptableCredential)
    sent = asked[0].upsertions[0]
    assert (sent.name, sent.iterations, sent.salt) == ("a", 5000, b"pepper")
    assert sent.salted_password == hashlib.pbkdf2_hmac("sha256", b"s3cret", b"pepper", 5000)
    assert len(asked[0].upsertions[1].salt) == 32
    assert [(item.name, item.mechanism) for item in asked[1].deletions] == [("a", 2)] and not asked[1].upsertions


def test_credentials_that_are_told(admin: Admin, broker: FakeBroker) -> None:
    kind = m.DescribeUserScramCredentialsResponse
    info, result = kind.CredentialInfo, kind.DescribeUserScramCredentialsResult
    found = [
        result(user="b", credential_infos=[info(mechanism=9, iterations=1), info(mechanism=1, iterations=4096)]),
        result(user="a", error_code=91),
    ]
    asked = answer_once(broker, m.DescribeUserScramCredentialsRequest.API_KEY, kind(results=found))
    outcomes = admin.describe_user_scram_credentials()
    assert asked[0].users is None and list(outcomes) == ["a", "b"]
    assert isinstance(outcomes["a"].error, ResourceNotFound)
    assert outcomes["b"].result() == (
        ScramCredentialInfo(SHA_256, 4096),
        ScramCredentialInfo(ScramMechanism.UNKNOWN, 1),
    )
    assert admin.describe_user_scram_credentials(["b"])["b"].error is None
    assert [user.name for user in asked[1].users] == ["b"]
    assert not admin.describe_user_scram_credentials([]) and len(asked) == 2, "an empty list would ask for all"
    with pytest.raises(TypeError):
        admin.describe_user_scram_credentials("b")


def test_quotas_that_are_asked_for(admin: Admin, broker: FakeBroker) -> None:
    kind = m.DescribeClientQuotasResponse
    parts = [
        kind.EntityData(entity_type="user", entity_name="a"),
        kind.EntityData(entity_type="client-id", entity_name=None),
    ]
    values = [kind.ValueData(key="producer_byte_rate", value=2.0), kind.ValueData(key="consumer_byte_rate", value=1.5)]
    answer = kind(entries=[kind.EntryData(entity=parts, values=values)])
    asked = answer_once(broker, m.DescribeClientQuotasRequest.API_KEY, answer, kind(entries=None))
    of = ClientQuotaEntity({"client-id": None, "user": "a"})
    wanted = ClientQuotaFilter({"user": "a", "client-id": None, "ip": ClientQuotaMatch.ANY}, strict=True)
    assert admin.describe_client_quotas(wanted) == {of: {"consumer_byte_rate": 1.5, "producer_byte_rate": 2.0}}
    told = [(item.entity_type, item.match_type, item.match) for item in asked[0].components]
    assert told == [("user", 0, "a"), ("client-id", 1, None), ("ip", 2, None)] and asked[0].strict
    assert admin.describe_client_quotas() == {}
    assert (
        str(of) == "client-id <default>, user a" and len({of, ClientQuotaEntity({"user": "a", "client-id": None})}) == 1
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_quota(admin: Admin, value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        admin.alter_client_quotas({ClientQuotaEntity({"user": "a"}): {"producer_byte_rate": value}})


def test_kinds_of_quotas(admin: Admin) -> None:
    wrong: Any
    for wrong in ("a", [("user", "a")]):
        with pytest.raises(TypeError):
            ClientQuotaEntity(wrong)
    for wrong in ({"user": 1}, {1: "a"}):
        with pytest.raises(TypeError):
            ClientQuotaEntity(wrong)
    wrong = "1"
    with pytest.raises(TypeError):
        admin.alter_client_quotas({ClientQuotaEntity({"user": "a"}): {"producer_byte_rate": wrong}})
