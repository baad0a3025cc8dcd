"""Who gets in, and what a page of elsewhere, a stranger or a lower role is refused."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from console_served import Browser, Served

from fastq import Admin
from fastq.console.app import HEADERS
from fastq.console.config import ClusterConfig, ConsoleConfig, parse_listen
from fastq.console.pages import ROUTES
from fastq.console.sessions import DELAY_MAX_S, FREE_TRIES, SESSION_S, SESSIONS_MAX, Sessions, Throttle
from fastq.console.users import ANYBODY, Role, Users, hash_password
from fastq.errors import ConfigError
from fastq.testing import Broker


@pytest.fixture(scope="module")
def guarded(
    served_to_all: Callable[..., Served], users: Users, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Served, Path]:
    """A console with users, and its audit log."""
    log = tmp_path_factory.mktemp("audit") / "log"
    return served_to_all(users=users, audit_log=log), log


@pytest.fixture
def stranger(guarded: tuple[Served, Path]) -> Iterator[Browser]:
    with Browser(guarded[0].url) as client:
        yield client


def audited(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_answer_has_the_headers(browser: Browser) -> None:
    for path in ("/c/test", "/static/console.js", "/nowhere", "/c/test/topics?page=x"):
        answer = browser.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    page = browser.get("/c/test").text
    assert "<script>" not in page and "<style" not in page and " style=" not in page and " onclick" not in page
    assert "httponly" in browser.get("/c/test").headers.get("set-cookie", "httponly").lower()


def test_a_form_without_its_token_changes_nothing(browser: Browser, new_topic_name: Callable[[], str]) -> None:
    token, name = browser.token("/c/test/new-topic"), new_topic_name()
    action = "/c/test/create-topic"
    assert browser.post(action, data={"name": name}).status_code == 403
    assert browser.post(action, data={"name": name, "token": "0" * 64}).status_code == 403
    assert browser.post(action, data={"name": name, "token": "é"}).status_code == 403
    elsewhere = {"origin": "http://evil.example"}
    assert browser.post(action, data={"name": name, "token": token}, headers=elsewhere).status_code == 403
    cross = {"sec-fetch-site": "cross-site"}
    assert browser.post(action, data={"name": name, "token": token}, headers=cross).status_code == 403
    assert browser.post(action, json={"name": name, "token": token}).status_code == 400
    with Browser(str(browser.base_url)) as other:  # another session's token
        assert other.post(action, data={"name": name, "token": token}).status_code == 403
    assert browser.get(f"/c/test/topics/{name}").status_code == 404
    assert browser.get(action).status_code == 405


def test_forms_have_bounds(browser: Browser) -> None:
    token = browser.token("/c/test/new-topic")
    form = {"content-type": "application/x-www-form-urlencoded"}
    for body in (b"name=" + b"x" * (5 << 20), b"&".join(b"a%d=1" % n for n in range(4_000)), b"name=%ff", b"\xff=1"):
        answer = browser.post("/c/test/create-topic", content=body + b"&token=" + token.encode(), headers=form)
        assert answer.status_code == 400, answer.text


def test_only_its_own_names_are_answered_without_a_login(console: Served) -> None:
    address = urlsplit(console.url).netloc
    for host, status in ((address, 200), ("localhost", 200), ("evil.example", 421), ("[::bad", 421), ("", 421)):
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.putrequest("GET", "/c/test", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == status, host
        connection.close()


def test_paths_lead_to_no_file(console: Served) -> None:
    address = urlsplit(console.url)
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/users.py", "//etc/passwd", "/static/"):
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 404"), path


def test_names_are_shown_as_text(browser: Browser) -> None:
    evil = "<script>alert(1)</script>"
    for page in ("/c/test/topics", "/c/test/topics?sort=%3Cscript%3E"):
        text = browser.get(page, params={"q": evil} if "?" not in page else None).text
        assert "<script>a" not in text and "<script>'" not in text
    assert evil not in browser.get("/c/test/topics/" + evil.replace("/", "%2f")).text


def test_without_a_login_nothing_is_told(stranger: Browser) -> None:
    for path in ("/", "/c/test", "/c/test/topics", "/c/nowhere/topics"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers.get("location")) == (303, "/login"), path
    assert stranger.post("/c/test/create-topic", data={"name": "x"}).status_code == 401
    assert stranger.get("/c/test/topics", headers={"accept": "text/event-stream"}).status_code == 401


def test_logging_in_and_out(stranger: Browser, guarded: tuple[Served, Path]) -> None:
    before = stranger.get("/login").cookies
    assert stranger.log_in("ann", "wrong").status_code == 401
    assert stranger.post("/login", data={"name": "ann", "password": "annann"}).status_code == 403  # no token
    assert stranger.log_in("ann", "annann").status_code == 303
    assert dict(stranger.cookies) != dict(before)
    assert "ann (admin)" in stranger.get("/c/test").text
    assert stranger.submit("/c/test", "/logout").status_code == 303
    assert stranger.get("/c/test").status_code == 303
    told = [(line["who"], line["what"], line["outcome"]) for line in audited(guarded[1])]
    assert ("ann", "login", "wrong name or password") in told and ("ann", "login", "done") in told
    assert "annann" not in guarded[1].read_text() and guarded[1].stat().st_mode & 0o077 == 0


def test_a_session_of_a_proxy_with_tls_stays_within_tls(guarded: tuple[Served, Path]) -> None:
    for scheme, secure in (("https", True), ("http", False)):
        with Browser(guarded[0].url) as browser:
            form = {"token": browser.token("/login"), "name": "ann", "password": "annann"}
            origin = f"{scheme}://{urlsplit(guarded[0].url).netloc}"
            answer = browser.post("/login", data=form, headers={"origin": origin})
            assert answer.status_code == 303 and ("secure" in answer.headers["set-cookie"].lower()) is secure


def test_roles_and_topics(
    stranger: Browser, guarded: tuple[Served, Path], shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    hidden, open_one = new_topic_name(), f"pub-{new_topic_name()}"
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        for name in (hidden, open_one):
            admin.create_topic(name)
    assert stranger.log_in("vera", "veravera").status_code == 303
    listed = stranger.get("/c/test/topics").text
    assert f">{open_one}<" in listed and hidden not in listed
    assert stranger.get(f"/c/test/topics/{hidden}").status_code == 404
    page = f"/c/test/topics/{open_one}"
    assert "Delete topic" not in stranger.get(page).text
    assert stranger.get("/c/test/new-topic").status_code == 403
    assert stranger.submit(page, f"{page}/delete", confirm=open_one).status_code == 403
    with Browser(guarded[0].url) as olga:
        olga.log_in("olga", "olgaolga")
        assert olga.submit("/c/test", "/c/test/create-topic", name="x").status_code == 403
    with Browser(guarded[0].url) as ann:
        ann.log_in("ann", "annann")
        assert ann.submit(page, f"{page}/delete", confirm=open_one).status_code == 200
    lines = [line for line in audited(guarded[1]) if "delete" in str(line["what"])]
    assert [(line["who"], line["outcome"] == "done") for line in lines] == [("vera", False), ("ann", True)]
    assert lines[1]["on"] == {"topic": open_one} and lines[1]["cluster"] == "test"


def test_read_only_changes_nothing(served: Callable[..., Served]) -> None:
    with Browser(served(read_only=True).url) as client:
        token = client.get("/c/test")
        assert "read only" in token.text
        cookie_token = Sessions().token("x")
        assert client.post("/c/test/create-topic", data={"name": "x", "token": cookie_token}).status_code == 403
        assert client.get("/c/test/new-topic").status_code == 403


def test_any_other_address_needs_users(users: Users) -> None:
    cluster = (ClusterConfig("one", {"bootstrap.servers": "127.0.0.1:1"}),)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="--users FILE"):
            ConsoleConfig(cluster, host=host).check()
        assert ConsoleConfig(cluster, host=host, users=users).check().allowed_hosts is None
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert host in (ConsoleConfig(cluster, host=host).check().allowed_hosts or ())
    assert parse_listen("[::1]:80") == ("::1", 80)
    for wrong in ("80", "host:", ":80", "host:x", "host:99999"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            parse_listen(wrong)


def test_the_file_of_users(tmp_path: Path) -> None:
    digest = hash_password("secret", b"salt" * 4)
    path = tmp_path / "users"
    for line, words in (
        ("ann", "name:role:hash"),
        (f"ann:king:{digest}", "none of viewer, operator, admin"),
        (f"ann:{digest}:admin", "none of viewer, operator, admin"),
        ("ann:admin:plain", "hash-password"),
        ("ann:admin:scrypt$1099511627776$8$1$aaaa$aaaa", "hash-password"),
        (f"ann:admin:{digest}\nann:viewer:{digest}", ":2: user 'ann' is there twice"),
        (f"ann:admin:{digest}:", "no pattern"),
        ("# nobody", "no user"),
    ):
        path.write_text(line)
        with pytest.raises(ConfigError, match=words) as told:
            Users.load(path)
        assert digest not in str(told.value)
    path.write_text(f"ann:admin:{digest}\nbob:viewer:{digest}:a-*, b\n")
    users = Users.load(path)
    ann, bob = users.check("ann", "secret"), users.check("bob", "secret")
    assert ann is not None and bob is not None and (ann.role, bob.role) == (Role.ADMIN, Role.VIEWER)
    assert [bob.may_see(topic) for topic in ("a-1", "b", "ba", "c")] == [True, True, False, False] and ann.may_see("c")
    assert (
        users.check("ann", "Secret") is None
        and users.check("carl", "secret") is None
        and users.check("ann", "") is None
    )
    for wrong in ("", "x" * 1025):
        with pytest.raises(ValueError, match="1 to 1024"):
            hash_password(wrong)


def test_tries_are_slowed_down_and_sessions_end() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(FREE_TRIES - 1):
        throttle.failed("name a", "address x")
        assert throttle.wait_s("name a") == 0
    waits = []
    for _ in range(12):
        throttle.failed("name a", "address x")
        waits.append(throttle.wait_s("name b", "address x"))
        now[0] += waits[-1]
    assert waits[:4] == [1, 2, 4, 8] and waits[-1] == DELAY_MAX_S
    throttle.succeeded("address x")
    assert throttle.wait_s("address x") == 0
    sessions = Sessions(lambda: now[0])
    cookie = sessions.log_in(ANYBODY)
    assert sessions.user(cookie) is ANYBODY and sessions.user("else") is None
    now[0] += SESSION_S
    assert sessions.user(cookie) is None
    cookies = [sessions.log_in(ANYBODY) for _ in range(SESSIONS_MAX + 1)]
    assert sessions.user(cookies[0]) is None and sessions.user(cookies[1]) is ANYBODY


def test_no_route_is_open_to_a_lower_role(
    served: Callable[..., Served], users: Users, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    """Every page and action that there is, asked for directly by each role, by each method, and of a topic that is not theirs."""
    hidden = new_topic_name()
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(hidden)
    console = served(users=users)
    for name, role in (("vera", Role.VIEWER), ("olga", Role.OPERATOR)):
        with Browser(console.url) as browser:
            browser.log_in(name, name * 2)
            token = {"token": browser.token("/c/test")}
            for method, path, least, _ in ROUTES:
                asked = path.format(cluster="test", topic=hidden, node=1, mirror="none")
                if method == "POST":
                    # No link of elsewhere changes anything.
                    assert browser.get(asked).status_code in (404, 405) or ("GET", path) in _ACTIONS, path
                    assert browser.post(asked, data={"x": "1"}).status_code == 403, path  # nor a form without its token
                else:
                    assert browser.post(asked, data=token).status_code == 405 or ("POST", path) in _ACTIONS, path
                if least > role:
                    answer = browser.request(method, asked, data=token if method == "POST" else None)
                    assert answer.status_code == 403 and f"needs the role {least.name.lower()}" in answer.text, path
                elif name == "vera" and "{topic}" in path:
                    answer = browser.get(asked)
                    assert answer.status_code == 404 or "UNKNOWN_TOPIC" in answer.text, path
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        assert len(admin.describe_topic(hidden).partitions) == 1


_ACTIONS = {(method, path) for method, path, _, _ in ROUTES}


def test_a_session_is_not_one_that_somebody_else_chose(stranger: Browser) -> None:
    stranger.cookies.set("fastq_console", "planted")
    stranger.log_in("ann", "annann")
    cookies = [cookie.value for cookie in stranger.cookies.jar if cookie.name == "fastq_console"]
    assert len(set(cookies)) == 2  # the planted one of the test, and the new one
    with Browser(str(stranger.base_url)) as planter:
        planter.cookies.set("fastq_console", "planted")
        assert planter.get("/c/test").status_code == 303
