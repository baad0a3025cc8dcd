"""The console on a cluster of three: moves that somebody has written, leaders that are not the preferred ones, a node that is gone, and
what a topic's page costs each node."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ConfigSource, NewPartitions, throttles
from fastq.cli import main
from fastq.testing import Broker, Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Browser, Served, becomes, events, searched

from fastq.console import tail
from fastq.console.config import ClusterConfig, ConsoleConfig

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own

MOVES = re.compile(r'name="moves" hidden>\n([^<]*)<')


def test_moves_leaders_and_a_node_that_is_gone(tmp_path: Path) -> None:
    with Cluster(3, tmp_path) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", replica_assignments={0: [1, 2], 1: [2, 3]})
        cluster.wait_in_sync()
        test = ClusterConfig("test", {"bootstrap.servers": cluster.bootstrap_servers})
        console = Served(ConsoleConfig((test,), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser:
                _moves(browser, admin)
                _leaders(browser, admin)
                cluster.node(3).kill()
                page = lambda: browser.get("/c/test").text  # noqa: E731
                assert becomes(lambda: '<td class="bad">fenced</td>' in page() or page().count(">running<") == 2)
                assert browser.get("/c/test/topics/orders").status_code == 200
        finally:
            console.close()


def test_throttles_go_whatever_becomes_of_a_move_or_it_is_told_where_they_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A move that is cancelled, whose node is killed and whose console begins anew in the middle: by the console, and by the command."""
    with Cluster(3, tmp_path) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        servers = cluster.bootstrap_servers
        admin.create_topic("large", replica_assignments={0: [1]})
        cluster.wait_in_sync()
        with Producer(bootstrap_servers=servers) as producer:
            for _ in range(60):  # a minute at 1 MiB a second
                producer.send("large", bytes(1_000_000))
        config = ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0)
        page, throttled = "/c/test/partitions", {("1", "1048576"), ("3", "1048576")}
        first = Served(config)
        try:
            with Browser(first.url) as browser:
                begun = browser.submit(page, f"{page}/reassign", moves="large:0:3:1", throttle="1")
                assert begun.text.count("throttled, until") == 3 and "begun" in begun.text
        finally:
            first.close()
        console = Served(config)
        try:
            with Browser(console.url) as browser:
                assert becomes(lambda: _throttles(admin) == throttled)
                assert "large-0" in browser.get(page).text
                assert browser.submit(page, f"{page}/unthrottle").status_code == 403  # it moves
                other = browser.submit(page, f"{page}/reassign", moves="large:0:2:1", throttle="5")
                assert other.status_code == 409 and "the move of large-0 is 3 now" in other.text, other.text
                assert _throttles(admin) == throttled
                cluster.node(3).kill()
                cancelled = browser.submit(page, f"{page}/cancel", topic="large", partition="0", seen="3")
                assert "topic large</td><td>throttled still" in cancelled.text, cancelled.text
                assert becomes(lambda: len(admin.describe_cluster().nodes) == 2)
                freed = browser.submit(page, f"{page}/unthrottle").text
                assert "topic large</td><td>done" in freed and "broker 1</td><td>done" in freed
                assert "broker 3</td><td>does not run: a throttle that it has stays" in freed
                cluster.node(3).start()
                cluster.wait_in_sync()
                assert _throttles(admin) == {("3", "1048576")}
                assert "broker 3</td><td>done" in browser.submit(page, f"{page}/unthrottle").text
                assert becomes(lambda: _throttles(admin) == set())
        finally:
            console.close()
        _throttled_by_command(cluster, admin, tmp_path / "moves.json", capfd)


def _throttled_by_command(cluster: Cluster, admin: Admin, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fastq(*arguments: str, code: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        options = ["--bootstrap", cluster.bootstrap_servers]
        assert main(["partitions", "reassign", *arguments, *options]) == code
        return capfd.readouterr()

    file.write_text('{"partitions": [{"topic": "large", "partition": 0, "replicas": [3]}]}')
    fastq("--execute", str(file), "--throttle", "1048576")
    assert becomes(lambda: _throttles(admin) == {("1", "1048576"), ("3", "1048576")})
    out, err = fastq("--verify", str(file), code=1)
    assert "1 under way" in out and "throttle" not in err and len(_throttles(admin)) == 2
    cluster.node(3).kill()
    assert becomes(lambda: len(admin.describe_cluster().nodes) == 2)
    out, err = fastq("--cancel", str(file))
    assert "cancelled 1 move" in out and "throttles were taken away" in out
    # The client may say before it that it cannot connect.
    stays = "fastq: broker 3 does not run, and keeps a throttle if it has one: --verify again once it is back"
    assert err.splitlines()[-1] == stays
    cluster.node(3).start()
    cluster.wait_in_sync()
    assert _throttles(admin) == {("3", "1048576")}
    out, err = fastq("--verify", str(file), code=1)
    assert "1 failed" in out and "throttles were taken away" in out and "does not run" not in err
    assert becomes(lambda: _throttles(admin) == set())
    # Of two moves only one is cancelled: the other one keeps its throttle.
    admin.create_topic("other", replica_assignments={0: [1]})
    cluster.wait_in_sync()
    both = '{"topic": "other", "partition": 0, "replicas": [1, 2]}, {"topic": "large", "partition": 0, "replicas": [3]}'
    file.write_text(f'{{"partitions": [{both}]}}')
    fastq("--execute", str(file), "--throttle", "1048576")
    file.write_text('{"partitions": [{"topic": "other", "partition": 0, "replicas": [1, 2]}]}')
    assert becomes(lambda: TopicPartition("other", 0) not in admin.list_partition_reassignments())
    out, err = fastq("--verify", str(file))
    assert "1 done" in out and "taken away" not in out and "fastq: 1 partition moves, so throttles stay" in err


def test_what_has_no_leader_is_told_and_followed_once_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WATCH_S", 0.2)
    with Cluster(3, tmp_path) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        servers = cluster.bootstrap_servers
        admin.create_topic("orders", replica_assignments={0: [1], 1: [3]})
        cluster.wait_in_sync()
        with Producer(bootstrap_servers=servers) as producer:
            for partition in (0, 1):
                producer.send("orders", b"before", partition=partition, timestamp_ms=1)
        cluster.node(3).kill()
        console = Served(ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser:
                none = "1 partition (1), which has no leader"
                assert becomes(lambda: searched(browser, "orders")[1].get("ended") == f"not looked at: {none}")
                for values in ({}, {"partition": 1}, {"from": "earliest", "limit": 1}):
                    _, end = searched(browser, "orders", **values)
                    assert none in end["ended"] and "all was" not in end["ended"], end
                answer = browser.get("/c/test/topics/orders/records/download")
                assert answer.status_code == 409 and none in answer.text
                _followed(browser, cluster, admin, none)
        finally:
            console.close()


def _followed(browser: Browser, cluster: Cluster, admin: Admin, none: str) -> None:
    """A tail that began without a partition, and before another was made."""
    came: set[str] = set()
    added = returned = False
    servers = cluster.bootstrap_servers
    with browser.stream("GET", "/c/test/topics/orders/records/tail") as answer:
        for name, found in events(answer.iter_lines()):
            assert name == "tail", found
            came.update(row["value"]["text"] for row in found["rows"])
            if not added and found["ready"]:
                assert found["trouble"] == none
                admin.create_partitions({"orders": NewPartitions(3, [[2]])}).results()
                with Producer(bootstrap_servers=servers) as producer:
                    producer.send("orders", b"added", partition=2).result()
                added = True
            elif not returned and "added" in came:
                cluster.node(3).start()
                cluster.wait_in_sync()
                with Producer(bootstrap_servers=servers) as producer:
                    producer.send("orders", b"returned", partition=1).result()
                returned = True
            elif "returned" in came and not found["trouble"]:
                break
    assert came == {"added", "returned"}


def _moves(browser: Browser, admin: Admin) -> None:
    page = "/c/test/partitions"
    for wrong, words in (
        ("orders:0:1,9", "there is no node 9; there are 1, 2, 3"),
        ("orders:7:1", "orders-7: there is no such partition"),
        ("orders:0:1,1", "twice"),
        ("orders", "topic:partition:node,node"),
    ):
        answer = browser.submit(page, page + "/plan", moves=wrong)
        assert answer.status_code == 400 and words in answer.text, answer.text
    unchanged = browser.submit(page, page + "/plan", moves="orders:0:1,2")
    assert "nothing is to be moved" in unchanged.text and not MOVES.search(unchanged.text)
    shown = browser.submit(page, page + "/plan", moves="orders:0:3,2\norders:1:2,3\n")
    found = MOVES.search(shown.text)
    assert found and found[1].split() == ["orders:0:3,2:1,2"] and "<td>1, 2</td><td>3, 2</td>" in shown.text
    assert admin.describe_topic("orders").partitions[0].replicas == (1, 2)  # nothing has begun
    # Two bars of three nodes, before and after.
    assert shown.text.count('class="now"') == shown.text.count('class="then"') == 6
    assert browser.submit(page, page + "/reassign", moves=found[1], throttle="x").status_code == 400
    assert browser.submit(page, page + "/reassign", moves=found[1], throttle="1").status_code == 200
    moved = lambda: admin.describe_topic("orders").partitions[0].replicas == (3, 2)  # noqa: E731
    assert becomes(moved) and becomes(lambda: "no partition moves" in browser.get(page).text)
    assert becomes(lambda: _throttles(admin) == {("1", "1048576"), ("2", "1048576"), ("3", "1048576")})
    answer = browser.submit(page, page + "/unthrottle")
    assert answer.status_code == 200 and "topic orders" in answer.text and "broker 3" in answer.text, answer.text
    assert becomes(lambda: _throttles(admin) == set())
    assert becomes(lambda: "nothing was to be done" in browser.submit(page, page + "/unthrottle").text)


def _throttles(admin: Admin) -> set[tuple[str, str | None]]:
    """Of which nodes the followers are throttled, and to how much."""
    found = admin.describe_configs([throttles.broker(node) for node in (1, 2, 3)]).results()
    return {
        (resource.name, entries[throttles.FOLLOWER_RATE].value)
        for resource, entries in found.items()
        if entries[throttles.FOLLOWER_RATE].source is ConfigSource.DYNAMIC_BROKER_CONFIG
    }


def _leaders(browser: Browser, admin: Admin) -> None:
    page, place = "/c/test/topics/orders", TopicPartition("orders", 1)
    admin.alter_partition_reassignments({place: [3, 2]}).results()  # another order of the same replicas elects nobody
    assert becomes(lambda: "1 partition is not led" in browser.get(page).text)
    answer = browser.submit(page, page + "/elect")
    assert answer.status_code == 200 and "orders-1" in answer.text
    assert becomes(lambda: "not led" not in browser.get(page).text)
    assert becomes(lambda: admin.describe_topic("orders").partitions[1].leader.node_id == 3)
    assert "led by it already" in browser.submit("/c/test/partitions", page + "/elect").text


ASKED = re.compile(r'fastq_requests_total\{api="(\w+)"\} (\d+)')
OF_NODES = {"Fetch", "FetchSnapshot", "BrokerHeartbeat", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AlterPartition"}
"""What nodes ask each other, and consumers for records."""
OF_CONNECTIONS = {"ApiVersions", "SaslHandshake"}


def _asked(cluster: Cluster) -> Counter[tuple[int, str]]:
    """The requests of clients that each node has answered, by API."""
    found = Counter[tuple[int, str]]()
    for number in (1, 2, 3):
        text = urlopen(f"{cluster.node(number).metrics_url}/metrics", timeout=20).read().decode()
        found.update(
            {(number, api): int(count) for api, count in ASKED.findall(text) if api not in OF_NODES | OF_CONNECTIONS}
        )
    return found


def test_a_topic_costs_a_node_one_request_and_no_page_more_than_it_shows(tmp_path: Path) -> None:
    """Whatever the number of partitions: and none of them is about all topics. Partitions without a leader hold nothing up."""
    cluster = Cluster(3, tmp_path)
    for node in cluster.nodes:
        node._arguments = _metered(node)  # type: ignore[method-assign]
    with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", replica_assignments={n: [n % 3 + 1, (n + 1) % 3 + 1] for n in range(12)})
        admin.create_topic("alone", replica_assignments={0: [3], 1: [1]})
        cluster.wait_in_sync()
        test = ClusterConfig("test", {"bootstrap.servers": cluster.bootstrap_servers})
        console = Served(ConsoleConfig((test,), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser:
                assert becomes(lambda: browser.get("/c/test/topics/orders").text.count("<td>none") == 0)
                before = _asked(cluster)
                assert browser.get("/c/test/topics/orders").text.count("?partition=") == 12
                cost = _asked(cluster) - before
                assert sum(cost.values()) == 1, cost  # of one node, and of no other
                assert browser.get("/c/test/topics/orders/offsets").text.count('<td class="n">0 B</td>') == 12
                states = browser.get("/c/test/topics/orders/replicas").text
                assert states.count("OnlineReplica") == 24 and states.count(">leader<") == 12
                # A replica's first offset, end, high watermark, last stable offset.
                noughts = '<td class="n">0</td>' * 4
                assert states.count(noughts) == 24
                before = _asked(cluster)
                browser.get("/c/test/topics/orders/ends", headers={"accept": "application/json"})
                assert sum((_asked(cluster) - before).values()) == 4  # its chart
                _pages_cost(cluster, admin, browser)
                cluster.node(3).kill()
                assert becomes(lambda: 'class="bad">none' in browser.get("/c/test/topics/alone").text)
                listed = browser.get("/c/test/topics?q=alone")
                assert listed.status_code == 200 and '<td class="n">–</td>' in listed.text
        finally:
            console.close()


OF_GROUP = {"FindCoordinator": 3, "ConsumerGroupDescribe": 1, "DescribeGroups": 1, "OffsetFetch": 1}
PAGES = {
    "/c/test": {"Metadata": 1, "DescribeCluster": 1, "DescribeQuorum": 1, "DescribeLogDirs": 3},
    "/c/test/nodes/1": {"DescribeConfigs": 1},
    "/c/test/topics": {"Metadata": 1, "ListOffsets": 6, "DescribeLogDirs": 3},
    "/c/test/topics?sort=size": {"Metadata": 1, "ListOffsets": 6, "DescribeLogDirs": 6},
    "/c/test/topics/orders": {"DescribeTopicPartitions": 1},
    "/c/test/topics/orders/offsets": {"DescribeTopicPartitions": 1, "ListOffsets": 6, "DescribeLogDirs": 3},
    "/c/test/topics/orders/replicas": {
        "DescribeTopicPartitions": 1,
        "ListPartitionReassignments": 1,
        "ListOffsets": 6,
    },
    "/c/test/topics/orders/settings": {"DescribeConfigs": 1},
    "/c/test/topics/orders/records": {"Metadata": 1},
    "/c/test/topics/orders/records/scan": {"Metadata": 1, "ListOffsets": 6},
    "/c/test/topics/orders/records/scan?from=time&at=0": {"Metadata": 1, "ListOffsets": 9},
    "/c/test/topics/orders/copy": {"Metadata": 1},
    "/c/test/groups": {"Metadata": 1, "ListGroups": 3},
    "/c/test/group?id=billing": {"Metadata": 1, "ListOffsets": 3, **OF_GROUP},
    "/c/test/group/lag?id=billing": {"Metadata": 1, "ListOffsets": 3, "FindCoordinator": 1, "OffsetFetch": 1},
    "/c/test/partitions": {"Metadata": 1, "ListPartitionReassignments": 1},
    "/c/test/transactions": {"Metadata": 1, "ListTransactions": 3},
}
"""What a page asks, of all nodes together: of each leader once for each kind of offset, and once what there is. Fetches are not counted, as
followers send them too: `replicas` asks each node once more by one."""


def _pages_cost(cluster: Cluster, admin: Admin, browser: Browser) -> None:
    """PAGES, once the console knows its cluster."""
    places = {TopicPartition("orders", index): 0 for index in range(12)}
    admin.alter_group_offsets("billing", places).results()
    for page, wanted in PAGES.items():
        assert browser.get(page).status_code == 200, page
        before = _asked(cluster)
        browser.get(page)
        cost = Counter[str]()
        for (_, api), count in (_asked(cluster) - before).items():
            cost[api] += count
        assert cost == wanted, page


def _metered(node: Broker) -> Callable[[], list[str]]:
    """The command of a node that tells its metrics; what formats its directory takes no such option."""
    arguments = node._arguments
    metrics = ["--metrics-listen", "127.0.0.1:0"]
    return lambda: [*arguments(), *(metrics if (node.data_dir / "meta.properties").exists() else [])]
