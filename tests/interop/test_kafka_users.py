"""SCRAM credentials and quotas in Apache Kafka: set, told and deleted by our admin clients and our command beside kafka-configs.sh, with
logins of both sides' clients as the judge of what a password became; and the same calls on a broker of ours, which has neither."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import apache_kafka
import pytest
from waiting import until

from fastq.admin import (
    Admin,
    AsyncAdmin,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaMatch,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from fastq.cli import main
from fastq.errors import (
    DuplicateResource,
    FastqError,
    InvalidRequest,
    ResourceNotFound,
    SaslAuthenticationFailed,
    UnacceptableCredential,
    UnsupportedVersion,
)

pytestmark = [
    pytest.mark.one_node,
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
ANY = ClientQuotaMatch.ANY
KAFKAS = "kafka.admin.ConfigCommand"


def run(tools: apache_kafka.Tools, main_class: str, *arguments: str) -> str:
    code, printed = tools.run(main_class, *arguments)
    assert code == 0, printed
    return printed


@pytest.fixture(scope="module")
def listeners() -> Iterator[tuple[str, str]]:
    """Addresses of a listener without a login and one with SCRAM."""
    plain, login, controller = (apache_kafka.free_port() for _ in range(3))
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    kafka = apache_kafka.ApacheKafka(
        heap="512m",
        properties={
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{login}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": jaas,
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": jaas,
        },
    )
    kafka.port, kafka.controller_port = plain, controller
    with kafka:
        yield f"127.0.0.1:{plain}", f"127.0.0.1:{login}"


@pytest.fixture(scope="module")
def tools() -> Iterator[apache_kafka.Tools]:
    with apache_kafka.Tools() as machine:
        yield machine


@pytest.fixture
def admin(listeners: tuple[str, str]) -> Iterator[Admin]:
    """Of a cluster that has neither yet."""
    with Admin(bootstrap_servers=listeners[0]) as admin:
        quotas = admin.describe_client_quotas()
        admin.alter_client_quotas({of: dict.fromkeys(values) for of, values in quotas.items()}).results()
        admin.alter_user_scram_credentials(
            [
                UserScramCredentialDeletion(user, found.mechanism)
                for user, outcome in admin.describe_user_scram_credentials().items()
                for found in outcome.result()
            ]
        ).results()
        until(lambda: not admin.describe_client_quotas() and not admin.describe_user_scram_credentials())
        yield admin


def fastq(capsys: pytest.CaptureFixture[str], servers: str, command: str) -> Any:
    assert main([*shlex.split(command), "--bootstrap", servers, "--json"]) == 0, command
    return json.loads(capsys.readouterr().out)


def log_in(address: str, user: str, password: str, mechanism: str) -> None:
    with Admin(
        bootstrap_servers=address, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username=user,
        sasl_password=password, default_api_timeout_ms=10_000,
    ) as admin:  # fmt: skip
        admin.describe_cluster()


def logs_in(address: str, user: str, password: str, mechanism: str) -> bool:
    try:
        log_in(address, user, password, mechanism)
    except SaslAuthenticationFailed:
        return False
    return True


def test_passwords_of_either_side_log_in_by_the_clients_of_both(
    listeners: tuple[str, str], admin: Admin, tools: apache_kafka.Tools, tmp_path: Any
) -> None:
    servers, login = listeners
    password = "pässwörd, =wonder]land"
    ours = [
        UserScramCredentialUpsertion("alice", password, SHA_256, 8192),
        UserScramCredentialUpsertion("alice", password, SHA_512, salt=b"a salt of ours"),
    ]
    admin.alter_user_scram_credentials(ours).results()
    run(
        tools, KAFKAS, "--bootstrap-server", servers, "--alter", "--entity-type", "users", "--entity-name", "bob",
        "--add-config", "SCRAM-SHA-512=[iterations=4096,password=builder]",
    )  # fmt: skip
    told = {
        "alice": (ScramCredentialInfo(SHA_256, 8192), ScramCredentialInfo(SHA_512, 4096)),
        "bob": (ScramCredentialInfo(SHA_512, 4096),),
    }
    until(lambda: admin.describe_user_scram_credentials().results() == told)
    printed = run(tools, KAFKAS, "--bootstrap-server", servers, "--describe", "--entity-type", "users")
    shown = {user: set(of.split(", ")) for user, of in re.findall(r"user-principal '(\w+)' are (.*)", printed)}
    assert shown == {
        "alice": {"SCRAM-SHA-256=iterations=8192", "SCRAM-SHA-512=iterations=4096"},
        "bob": {"SCRAM-SHA-512=iterations=4096"},
    }
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        until(lambda mechanism=mechanism: logs_in(login, "alice", password, mechanism))
        assert not logs_in(login, "alice", f"{password}s", mechanism)
    until(lambda: logs_in(login, "bob", "builder", "SCRAM-SHA-512"))
    # Kafka's own client, by what we have made of the password.
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = tmp_path / "client.properties"
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={module} required username="alice" password="{quoted}";\n'
    )
    settings.write_text(text.encode("ascii", "backslashreplace").decode().replace("\\x", "\\u00"), encoding="ascii")
    described = run(
        tools,
        KAFKAS,
        "--bootstrap-server",
        login,
        "--command-config",
        str(settings),
        "--describe",
        "--entity-type",
        "users",
    )
    assert "alice" in described and "Exception" not in described, described
    one = UserScramCredentialDeletion("alice", SHA_256)
    admin.alter_user_scram_credentials([one]).results()
    until(lambda: not logs_in(login, "alice", password, "SCRAM-SHA-256"))
    assert logs_in(login, "alice", password, "SCRAM-SHA-512")


def test_errors_are_those_of_their_users(admin: Admin) -> None:
    outcomes = admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion("many", "x", SHA_512, 16_385),
            UserScramCredentialDeletion("nobody", SHA_256),
            UserScramCredentialUpsertion("twice", "x", SHA_512),
            UserScramCredentialUpsertion("twice", "y", SHA_512),
            UserScramCredentialUpsertion("good", "x", SHA_256),
        ]
    )
    assert {user: type(error) for user, error in outcomes.errors.items()} == {
        "many": UnacceptableCredential,
        "nobody": ResourceNotFound,
        "twice": DuplicateResource,
    }
    assert list(outcomes) == ["many", "nobody", "twice", "good"]
    until(lambda: list(admin.describe_user_scram_credentials()) == ["good"])
    asked = admin.describe_user_scram_credentials(["nobody", "good"])
    assert list(asked.errors) == ["nobody"] and isinstance(asked.errors["nobody"], ResourceNotFound)
    assert asked["good"].result() == (ScramCredentialInfo(SHA_256, 4096),)
    assert not admin.describe_user_scram_credentials([]), "nobody was asked about, and nobody is told of"


def test_quotas_of_either_side_are_the_same(
    listeners: tuple[str, str], admin: Admin, tools: apache_kafka.Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = listeners[0]
    alice, everybody = ClientQuotaEntity({"user": "alice"}), ClientQuotaEntity({"user": None})
    her_app = ClientQuotaEntity({"user": "alice", "client-id": "app"})
    address = ClientQuotaEntity({"ip": "10.0.0.1"})
    wanted = {
        alice: {"producer_byte_rate": 1_000_000.0, "request_percentage": 12.5},
        everybody: {"consumer_byte_rate": 5.0},
        her_app: {"controller_mutation_rate": 3.0},
        address: {"connection_creation_rate": 7.0},
    }
    admin.alter_client_quotas(wanted, validate_only=True).results()
    assert admin.describe_client_quotas() == {}
    admin.alter_client_quotas(wanted).results()
    until(lambda: admin.describe_client_quotas() == wanted)
    printed = run(tools, KAFKAS, "--bootstrap-server", servers, "--describe", "--entity-type", "users")
    assert sorted(re.findall(r"(\w+)=([\d.E]+)", printed)) == [
        ("consumer_byte_rate", "5.0"), ("producer_byte_rate", "1000000.0"), ("request_percentage", "12.5"),
    ]  # fmt: skip
    for components, strict, found in (
        ({"user": "alice"}, False, [alice, her_app]),
        ({"user": "alice"}, True, [alice]),
        ({"user": None}, False, [everybody]),
        ({"user": ANY}, True, [everybody, alice]),
        ({"user": ANY, "client-id": ANY}, False, [her_app]),
        ({"ip": "10.0.0.1"}, False, [address]),
        ({"client-id": "other"}, False, []),
    ):
        assert set(admin.describe_client_quotas(ClientQuotaFilter(components, strict))) == set(found), components
    odd = ClientQuotaEntity({"team": "a"})
    outcomes = admin.alter_client_quotas(
        {odd: {"producer_byte_rate": 1.0}, alice: {"nonsense": 1.0}, her_app: {"controller_mutation_rate": None}}
    )
    assert {of: type(error) for of, error in outcomes.errors.items()} == {odd: InvalidRequest, alice: InvalidRequest}
    until(lambda: her_app not in admin.describe_client_quotas())
    with pytest.raises(FastqError):
        admin.describe_client_quotas(ClientQuotaFilter({"team": "a"}))

    fastq(capsys, servers, "configs set --client app consumer_byte_rate=2048 request_percentage=1.5")
    until(lambda: len(fastq(capsys, servers, "configs show --client app")) == 2)
    assert [(row["name"], row["value"]) for row in fastq(capsys, servers, "configs show --client app")] == [
        ("consumer_byte_rate", 2048), ("request_percentage", 1.5),
    ]  # fmt: skip
    assert "consumer_byte_rate=2048.0, request_percentage=1.5" in run(
        tools, KAFKAS, "--bootstrap-server", servers, "--describe", "--entity-type", "clients", "--entity-name", "app"
    )
    assert [row["name"] for row in fastq(capsys, servers, "configs list --type user")] == ["<default>", "alice"]
    assert fastq(capsys, servers, "configs list --type ip") == [{"type": "ip", "name": "10.0.0.1"}]
    fastq(capsys, servers, "configs set --ip 10.0.0.1 connection_creation_rate=")
    until(lambda: fastq(capsys, servers, "configs list --type ip") == [])


def test_the_command_sets_credentials_and_shows_no_secret(
    listeners: tuple[str, str], admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, login = listeners
    told = fastq(
        capsys,
        servers,
        "configs set --user carol SCRAM-SHA-256=[iterations=8192,password=se,cret] producer_byte_rate=9",
    )
    assert told == {"resource": "user carol", "set": {"SCRAM-SHA-256": "[hidden]", "producer_byte_rate": "9"}}
    monkeypatch.setattr("sys.stdin", io.StringIO("a line\n"))
    fastq(capsys, servers, "configs set --user carol SCRAM-SHA-512=[iterations=4096]")
    until(lambda: logs_in(login, "carol", "se,cret", "SCRAM-SHA-256"))
    until(lambda: logs_in(login, "carol", "a line", "SCRAM-SHA-512"))
    assert [(row["name"], row["value"]) for row in fastq(capsys, servers, "configs show --user carol")] == [
        ("producer_byte_rate", 9), ("SCRAM-SHA-256", "iterations=8192"), ("SCRAM-SHA-512", "iterations=4096"),
    ]  # fmt: skip
    fastq(capsys, servers, "configs set --user carol SCRAM-SHA-256= SCRAM-SHA-512= producer_byte_rate=")
    until(lambda: fastq(capsys, servers, "configs show --user carol") == [])
    assert main(["configs", "set", "--user", "carol", "SCRAM-SHA-512=[password=", "--bootstrap", servers]) == 2
    assert "SCRAM-SHA-512 takes [iterations=8192,password=SECRET]" in capsys.readouterr().err
    half = [
        "configs",
        "set",
        "--user",
        "carol",
        "SCRAM-SHA-256=[iterations=20000,password=geheim]",
        "request_percentage=5",
    ]
    assert main([*half, "--bootstrap", servers]) == 1
    err = capsys.readouterr().err
    assert "the quotas are set, the credentials are not" in err and "geheim" not in err


def test_asyncio_has_the_same(listeners: tuple[str, str], admin: Admin) -> None:
    of = ClientQuotaEntity({"client-id": None})

    async def check() -> None:
        async with AsyncAdmin(bootstrap_servers=listeners[0]) as twin:
            (await twin.alter_client_quotas({of: {"producer_byte_rate": 8.0}})).results()
            (await twin.alter_user_scram_credentials([UserScramCredentialUpsertion("dan", "x")])).results()
            until(lambda: list(admin.describe_user_scram_credentials()) == ["dan"])
            assert list(await twin.describe_user_scram_credentials()) == ["dan"]
            assert await twin.describe_client_quotas() == {of: {"producer_byte_rate": 8.0}}

    asyncio.run(check())


def test_a_broker_of_ours_has_neither_and_says_why(fastq_servers: str) -> None:
    of = ClientQuotaEntity({"user": "alice"})
    with Admin(bootstrap_servers=fastq_servers) as ours:
        assert ours.describe_client_quotas() == {} and not ours.describe_user_scram_credentials()
        error = ours.alter_client_quotas({of: {"producer_byte_rate": 1.0}}).errors[of]
        assert isinstance(error, UnsupportedVersion) and "enforces no quotas" in str(error)
        ours.alter_client_quotas({of: {"producer_byte_rate": None}}).results()
        error = ours.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", "hush")]).errors["alice"]
        assert isinstance(error, UnsupportedVersion) and "no listeners with SASL" in str(error)
        assert "hush" not in str(error)
