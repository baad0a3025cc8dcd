"""Every action of the console that one node is enough for, clicked in a browser: against our broker, and against Apache Kafka.

Rules: what an action has done is asked of the cluster by a client, not read from the page. What only a cluster can do (moves, their end,
leaders that are not the preferred ones) is clicked in `tests/integration/test_console_browser_cluster.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ClientQuotaEntity, ConfigResource, HangingTransaction
from fastq.admin.transactions import HangingShown

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from chromium import Chromium
from console_served import Served, becomes

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.pages import transactions
from fastq.net.operations import Operation

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.screen(1280, 900)
        yield browser


@pytest.fixture
def console(servers: str, chromium: Chromium) -> Iterator[str]:
    served = Served(ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0))
    yield served.url.rstrip("/") + "/c/test"
    chromium.go("about:blank")  # what the last page still loads, its icon say, is no trouble
    served.close()
    troubles, chromium.troubles[:] = list(chromium.troubles), []
    assert not troubles


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture
def topic(servers: str, admin: Admin, new_topic_name: Callable[[], str]) -> str:
    """A topic of three records that all nodes know of."""
    name = new_topic_name()
    admin.create_topic(name, configs={"retention.ms": "-1"})
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(3):
            producer.send(name, b'{"id": %d}' % n, key=b"k%d" % n).result()
    return name


def form(action: str, field: str = "") -> str:
    return f"form[action$='/{action}'] {field or 'button'}"


def test_settings_clones_and_purges(chromium: Chromium, console: str, admin: Admin, topic: str) -> None:
    def setting(name: str, key: str) -> str | None:
        resource = ConfigResource.topic(name)
        return admin.describe_configs([resource])[resource].result()[key].value

    page = f"{console}/topics/{topic}"
    chromium.go(f"{page}/settings")
    chromium.fill(form("set-config", "[name=key]"), "max.message.bytes")
    chromium.fill(form("set-config", "[name=value]"), "4321")
    chromium.click(form("set-config"))
    chromium.until_text("done")
    assert becomes(lambda: setting(topic, "max.message.bytes") == "4321")
    chromium.go(f"{page}/settings")
    chromium.fill(form("set-config", "[name=key]"), "max.message.bytes")
    chromium.click(form("set-config", "[name=default]"))
    chromium.click(form("set-config"))
    chromium.until_text("done")
    assert becomes(lambda: setting(topic, "max.message.bytes") != "4321")
    chromium.go(page)
    chromium.fill(form("clone", "[name=name]"), f"{topic}.clone")
    chromium.click(form("clone"))
    chromium.until_text("done")
    assert becomes(lambda: f"{topic}.clone" in admin.list_topics())
    assert setting(f"{topic}.clone", "retention.ms") == "-1"
    chromium.go(page)
    chromium.fill(form("purge", "[name=partition]"), "0")
    chromium.fill(form("purge", "[name=before]"), "2")
    chromium.fill(form("purge", "[name=confirm]"), topic)
    chromium.click(form("purge"))
    chromium.until_text("the first offset is 2")
    assert admin.list_offsets({TopicPartition(topic, 0): -2}).results()[TopicPartition(topic, 0)].offset == 2


def test_elections_and_plans(chromium: Chromium, console: str, admin: Admin, topic: str) -> None:
    chromium.go(f"{console}/partitions")
    chromium.click(form("partitions/elect"))
    chromium.click("dialog button.danger")
    chromium.until_text("Elect preferred leaders")
    chromium.until_text("Go on")
    chromium.go(f"{console}/partitions")
    chromium.click("form[action$='/proposal'] button")
    chromium.until_text("Nothing has begun")
    replicas = admin.describe_topic(topic).partitions[0].replicas
    chromium.go(f"{console}/partitions")
    chromium.fill("[name=moves]", f"{topic}:0:{replicas[0]}")
    chromium.click(form("plan"))
    chromium.until_text("nothing is to be moved")
    chromium.go(f"{console}/partitions")
    chromium.click(form("unthrottle"))
    chromium.until_text("nothing was to be done")


def test_a_group_is_deleted(chromium: Chromium, console: str, admin: Admin, topic: str) -> None:
    group = f"{topic}-group"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1}).results()
    chromium.go(f"{console}/groups?q={group}")
    chromium.click("tbody td a")
    chromium.fill(form("group/delete", "[name=confirm]"), group)
    chromium.click(form("group/delete"))
    chromium.until_text("done")
    assert becomes(lambda: group not in admin.list_groups())


def test_an_open_transaction_is_aborted(
    chromium: Chromium, console: str, servers: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is open for a quarter of an hour: the list is told of one that has just begun, and what ends it is real."""
    place = TopicPartition(topic, 0)

    def hanging(*_: object, **__: object) -> Operation[HangingShown]:
        (state,) = (one for one in admin.describe_producers([place])[place].result() if one.transaction_start_offset)
        return HangingShown([HangingTransaction(place, state, None)], {})
        yield  # an operation is a generator

    with Producer(bootstrap_servers=servers, transactional_id=f"tx-{topic}") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "hanging_shown", hanging)
            chromium.go(f"{console}/transactions")
            chromium.click("[name=hanging]")
            chromium.click("form[role=search] button")
            chromium.click(form("transactions/abort"))
            chromium.click("dialog button.danger")
            chromium.until_text("Go on")
            assert "done" in chromium.text()
        states = admin.describe_producers([place])[place].result()
        assert [state.transaction_start_offset for state in states if state.transaction_start_offset] == []
        producer.abort_transaction()


def test_what_is_found_is_downloaded(chromium: Chromium, console: str, topic: str, tmp_path: Path) -> None:
    chromium.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.go(f"{console}/topics/{topic}/records?from=earliest")
    for kind in ("jsonl", "csv"):
        chromium.click(f".download[data-format={kind}]")
        path = tmp_path / f"{topic}.{kind}"
        assert becomes(path.exists)
        lines = path.read_text().splitlines()
        if kind == "jsonl":
            assert [json.loads(line)["value"] for line in lines] == ['{"id": 0}', '{"id": 1}', '{"id": 2}']
        else:
            assert len(lines) == 4 and lines[0].startswith("partition,offset")


def _kafkas(request: pytest.FixtureRequest) -> bool:
    return "apache-kafka" in request.node.callspec.id


def test_credentials_are_set_and_deleted_where_the_cluster_has_logins(
    chromium: Chromium, console: str, admin: Admin, new_topic_name: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    user = f'"{new_topic_name()}" <b>'
    chromium.go(f"{console}/users")
    assert not chromium.violations()
    if not _kafkas(request):
        chromium.until_text("no listeners with SASL")
        assert "no user has a SCRAM credential" in chromium.text() and not chromium.run(
            f"document.querySelector({form('users/set')!r})"
        )
        return

    def mechanisms() -> list[tuple[str, int]]:
        found = admin.describe_user_scram_credentials([user])[user].value or ()
        return [(one.mechanism.name, one.iterations) for one in found]

    chromium.fill(form("users/set", "[name=user]"), user)
    chromium.choose(form("users/set", "[name=mechanism]"), "SCRAM_SHA_256")
    chromium.fill(form("users/set", "[name=password]"), "geheim")
    chromium.fill(form("users/set", "[name=again]"), "gehiem")
    chromium.click(form("users/set"))
    chromium.until_text("the two passwords are not the same")
    assert "geheim" not in chromium.run("document.documentElement.outerHTML") and not mechanisms()
    assert all("400" in trouble for trouble in chromium.troubles)
    chromium.troubles.clear()
    chromium.go(f"{console}/users")
    chromium.fill(form("users/set", "[name=user]"), user)
    chromium.fill(form("users/set", "[name=password]"), "geheim")
    chromium.fill(form("users/set", "[name=again]"), "geheim")
    chromium.click(form("users/set"))
    chromium.until_text("done")
    assert becomes(lambda: mechanisms() == [("SCRAM_SHA_512", 8192)])
    chromium.go(f"{console}/users")
    chromium.until_text("8,192")
    assert "geheim" not in chromium.run("document.documentElement.outerHTML") and not chromium.violations()
    chromium.click(form("users/delete"))
    chromium.click("dialog button.danger")
    chromium.until_text("done")
    assert becomes(lambda: not mechanisms())


def test_quotas_are_set_and_taken_away_where_the_cluster_has_them(
    chromium: Chromium, console: str, admin: Admin, new_topic_name: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    user = new_topic_name()
    of = ClientQuotaEntity({"user": user, "client-id": None})
    chromium.go(f"{console}/quotas")
    assert not chromium.violations()
    if not _kafkas(request):
        chromium.until_text("holds nobody to a quota")
        assert "no quota is set" in chromium.text()
        return
    chromium.fill(form("quotas/set", "[name=user]"), user)
    chromium.click(form("quotas/set", "[name=client-id-default]"))
    chromium.choose(form("quotas/set", "[name=key]"), "consumer_byte_rate")
    chromium.fill(form("quotas/set", "[name=value]"), "1048576")
    chromium.click(form("quotas/set"))
    chromium.until_text("done")
    assert becomes(lambda: admin.describe_client_quotas().get(of) == {"consumer_byte_rate": 1048576.0})
    chromium.go(f"{console}/quotas?q={user}")
    chromium.until_text("1,048,576")
    assert not chromium.violations()
    chromium.click(f"tbody {form('quotas/set')}")
    chromium.click("dialog button.danger")
    chromium.until_text("done")
    assert becomes(lambda: of not in admin.describe_client_quotas())


def test_a_nodes_settings_are_set_and_taken_back(chromium: Chromium, console: str, admin: Admin) -> None:
    key = "compression.gzip.level"
    node = admin.describe_cluster().nodes[0].node_id

    def told(resource: ConfigResource) -> tuple[str | None, str]:
        entry = admin.describe_configs([resource])[resource].result().get(key)
        return (entry.value, entry.source.name) if entry else (None, "")

    def change(of: str, value: str) -> None:
        chromium.go(f"{console}/nodes/{node}")
        chromium.until_text("Those that are not fixed")
        chromium.choose(form("set-config", "[name=key]"), key)
        if value:
            chromium.fill(form("set-config", "[name=value]"), value)
        else:
            chromium.click(form("set-config", "[name=default]"))
        chromium.choose(form("set-config", "[name=of]"), of)
        chromium.click(form("set-config"))
        chromium.until_text("Go on")

    before = told(ConfigResource.broker(node))
    change("all", "2")
    assert becomes(lambda: told(ConfigResource.broker(node)) == ("2", "DYNAMIC_DEFAULT_BROKER_CONFIG"))
    change("all", "")
    assert becomes(lambda: told(ConfigResource.broker(node)) == before)
    chromium.go(f"{console}/nodes/{node}")
    fixed = "[...document.querySelectorAll('[name=key] option')].some(o => o.text == 'log.dirs' || o.text == 'node.id')"
    chromium.until_text("Those that are not fixed")
    assert not chromium.run(fixed), "what a node reads at its start alone is no choice"
