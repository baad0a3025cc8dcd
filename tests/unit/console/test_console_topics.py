"""Overview and topics, in a console that is served for real."""

from collections.abc import Callable

from console_served import Browser, Served, becomes

from fastq import Admin, Producer
from fastq.admin import ConfigEntry, ConfigResource
from fastq.console.config import ClusterConfig
from fastq.testing import Broker, SchemaRegistry


def test_the_first_page_is_the_cluster_with_its_nodes(browser: Browser) -> None:
    page = browser.get("/", follow_redirects=True)
    assert page.status_code == 200 and page.url.path == "/c/test"
    for words in ("Nodes", "Metadata quorum", "running", "leader"):
        assert words in page.text
    assert "not told" not in page.text  # of disks: asked without all that is in them


def test_topics_are_searched_sorted_and_paged(
    browser: Browser, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    stem = new_topic_name()
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        from fastq.admin import NewTopic

        topics = [NewTopic(name=f"{stem}.{n:02}", partitions=1 + (n == 7)) for n in range(60)]
        admin.create_topics(topics).results()
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(f"{stem}.00", b"x", partition=0)
    names = lambda text: [n for n in range(60) if f">{stem}.{n:02}</a>" in text]  # noqa: E731
    first = browser.get("/c/test/topics", params={"q": stem.upper()}).text
    assert names(first) == list(range(50)) and "60 in all, page 1 of 2" in first
    assert names(browser.get("/c/test/topics", params={"q": stem, "page": 2}).text) == list(range(50, 60))
    down = browser.get("/c/test/topics", params={"q": stem, "sort": "partitions", "order": "down"}).text
    assert down.index(f"{stem}.07</a>") < down.index(f"{stem}.00</a>")
    assert "no topic has" in browser.get("/c/test/topics", params={"q": stem + "none"}).text
    page = browser.get(f"/c/test/topics/{stem}.07").text
    assert page.count("?partition=") == 2
    settings = browser.get(f"/c/test/topics/{stem}.07/settings").text
    assert "cleanup.policy" in settings and "default" in settings
    by_size = browser.get("/c/test/topics", params={"q": stem, "sort": "size", "order": "down"}).text
    assert names(by_size)[0] == 0 and by_size.index(f"{stem}.00</a>") < by_size.index(f"{stem}.01</a>")
    assert names(browser.get("/c/test/topics", params={"q": stem, "sort": "size", "order": "up"}).text) == [
        *range(1, 51)
    ]


def test_a_topic_is_made_changed_cloned_purged_and_deleted(
    browser: Browser, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    name, other = new_topic_name(), new_topic_name()
    assert (
        browser.submit(
            "/c/test/new-topic", "/c/test/create-topic", name=name, partitions="2", configs="retention.ms=1000000\r\n"
        ).status_code
        == 200
    )
    page = f"/c/test/topics/{name}"
    assert browser.submit(page, f"{page}/add-partitions", total="3").status_code == 200
    assert browser.submit(page, f"{page}/set-config", key="max.message.bytes", value="2000").status_code == 200
    assert browser.submit(page, f"{page}/clone", name=other).status_code == 200
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(name, b"x", partition=1).result()
    assert browser.submit(page, f"{page}/purge", confirm="another").status_code == 400
    assert "the first offset is 1" in browser.submit(page, f"{page}/purge", confirm=name).text
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:

        def setting(topic: str, key: str) -> ConfigEntry:
            resource = ConfigResource.topic(topic)
            return admin.describe_configs([resource])[resource].result()[key]

        for topic in (name, other):
            assert len(admin.describe_topic(topic).partitions) == 3
            assert becomes(lambda topic=topic: setting(topic, "max.message.bytes").value == "2000")
            assert setting(topic, "retention.ms").value == "1000000"
        told = " ".join(browser.get(f"{page}/settings").text.split())
        row = '<td class="mono key">max.message.bytes</td> <td class="mono wrap">2000</td> <td class="mono wrap">1048588</td>'
        assert row in told, "the value and what it would be"
        assert browser.submit(page, f"{page}/set-config", key="max.message.bytes", default="1").status_code == 200
        assert becomes(lambda: setting(name, "max.message.bytes").is_default)
        assert browser.submit(page, f"{page}/delete", confirm=name).status_code == 200
        assert becomes(lambda: name not in admin.list_topics())
    assert becomes(lambda: browser.get(page).status_code == 404)


def test_a_clone_is_nobodys_mirror_and_not_throttled(
    browser: Browser, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    """What belongs to the topic itself, or to places of its partitions, is not copied: the clone was read-only for ever."""
    name, other = new_topic_name(), new_topic_name()
    own = {
        "mirror.source": "east/cluster/topic",
        "leader.replication.throttled.replicas": "0:1",
        "follower.replication.throttled.replicas": "0:1",
    }
    with (
        Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin,
        Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer,
    ):
        admin.create_topic(name, 1, configs={**own, "retention.ms": "1000000"})
        page = f"/c/test/topics/{name}"
        assert becomes(lambda: browser.get(page).status_code == 200)
        assert browser.submit(page, f"{page}/clone", name=other).status_code == 200
        producer.send(other, b"x", partition=0).result()
        resource = ConfigResource.topic(other)
        found = admin.describe_configs([resource])[resource].result()
        assert {found[key].value or "" for key in own} == {""} and found["retention.ms"].value == "1000000"


def test_what_the_cluster_refuses_is_a_sentence(browser: Browser, new_topic_name: Callable[[], str]) -> None:
    new = "/c/test/new-topic", "/c/test/create-topic"
    for fields, status, words in (
        ({"name": "a b"}, 409, "a b"),
        ({"name": ""}, 400, "name is missing"),
        ({"name": "x" * 300}, 400, "the most is 249"),
        ({"name": "x", "partitions": "many"}, 400, "whole number"),
        ({"name": new_topic_name(), "configs": "no sign"}, 400, "name=value"),
        ({"name": new_topic_name(), "configs": "retention.ms=soon"}, 409, "retention.ms"),
    ):
        answer = browser.submit(*new, **fields)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        assert "Traceback" not in answer.text
    assert browser.get("/c/test/topics", params={"page": "x"}).status_code == 400
    assert browser.get("/c/other/topics").status_code == 404
    assert browser.get("/c/test/topics/there-is-none").status_code == 404


def test_partitions_of_a_large_topic_are_paged(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(shared_broker.bootstrap_servers, 201)
    first = browser.get(f"/c/test/topics/{topic}").text
    assert first.count("?partition=") == 200 and "201 in all, page 1 of 2" in first
    last = browser.get(f"/c/test/topics/{topic}", params={"page": 2}).text
    assert last.count("?partition=") == 1 and "?partition=200" in last


def test_what_a_cluster_has_none_of_is_a_sentence(browser: Browser) -> None:
    """A broker without an authorizer, a console that knows no schema registry."""
    acls, schemas = browser.get("/c/test/acls"), browser.get("/c/test/schemas")
    assert acls.status_code == 200 and "has no authorizer" in acls.text and "<form" not in acls.text.split("<main")[1]
    assert schemas.status_code == 200 and "knows no schema registry" in schemas.text
    fields = {
        "kind": "TOPIC", "name": "t", "principal": "User:a", "operation": "READ", "permission": "ALLOW", "pattern": "LITERAL",
    }  # fmt: skip
    answer = browser.submit("/c/test/new-topic", "/c/test/acls/create", **fields)
    assert "authorizer" in answer.text.lower() or "SECURITY_DISABLED" in answer.text
    for path in ("/c/test/schema?id=x", "/c/test/schema"):
        assert browser.get(path).status_code == 400


def test_schemas_of_a_registry_that_refuses_or_is_gone(served: Callable[..., Served], shared_broker: Broker) -> None:
    with SchemaRegistry() as registry:
        cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers}, registry.url)
        url = served(clusters=(cluster,)).url
        with Browser(url) as browser:
            assert "no subject is there yet" in browser.get("/c/test/schemas").text
            gone = browser.get("/c/test/schema", params={"id": "none/../x"})
            assert gone.status_code == 409 and "404" in gone.text
            assert browser.submit("/c/test/new-topic", "/c/test/schema/level", id="x", level="LOW").status_code == 400
    with Browser(url) as browser:
        answer = browser.get("/c/test/schemas")
        assert answer.status_code == 409 and "cannot be reached" in answer.text
