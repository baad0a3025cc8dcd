"""The file of users while the console runs: who is new gets in, and whoever is gone, or is less, is so at once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from console_served import Browser, Served, becomes

from fastq.console.users import Users, hash_password

HASHES = {name: hash_password(name * 2) for name in ("ann", "olga", "vera")}


def written(path: Path, *lines: str) -> None:
    """As an editor or a tool does it: another file takes its place."""
    new = path.with_suffix(".new")
    new.write_text("".join(line + "\n" for line in lines))
    new.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    written(path, f"ann:admin:{HASHES['ann']}", f"olga:operator:{HASHES['olga']}")
    return path


def test_the_file_is_read_anew(served: Callable[..., Served], file: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit"
    url = served(users=Users.load(file), audit_log=log).url
    with Browser(url) as ann, Browser(url) as olga, Browser(url) as vera:
        assert ann.log_in("ann", "annann").status_code == olga.log_in("olga", "olgaolga").status_code == 303
        assert vera.log_in("vera", "veravera").status_code == 401
        written(file, f"ann:viewer:{HASHES['ann']}:pub-*", f"vera:viewer:{HASHES['vera']}")
        assert "ann (viewer)" in ann.get("/c/test").text  # less, at once, and in the session that is there
        assert ann.get("/c/test/topics/other").status_code == 404
        assert olga.get("/c/test").headers.get("location") == "/login"
        assert olga.log_in("olga", "olgaolga").status_code == 401
        assert vera.log_in("vera", "veravera").status_code == 303
        written(file, f"ann:viewer:{hash_password('another')}", f"vera:viewer:{HASHES['vera']}")
        assert ann.get("/c/test").status_code == 303  # who has another password logs in with it
        assert ann.log_in("ann", "another").status_code == 303
        for broken in ("vera:owner:x", "", "\udcff"):
            new = file.with_suffix(".new")
            new.write_bytes(broken.encode("utf-8", "surrogateescape"))
            new.replace(file)
            assert ann.get("/c/test").status_code == vera.get("/c/test").status_code == 200, broken
        file.unlink()
        assert vera.get("/c/test").status_code == 200
        written(file, f"vera:admin:{HASHES['vera']}")
        assert "vera (admin)" in vera.get("/c/test").text and ann.get("/c/test").status_code == 303
    read = [line for line in map(json.loads, log.read_text().splitlines()) if line["what"] == "read users"]
    assert [line["on"]["sessions ended"] for line in read] == [1, 1, 0, 0, 0, 0, 1]
    assert (
        "vera:owner" not in log.read_text() and "role 'owner'" in read[2]["outcome"] and "scrypt" not in log.read_text()
    )


def test_what_goes_on_ends_with_the_session(
    served: Callable[..., Served], file: Path, make_topic: Callable[..., str], shared_broker: Any
) -> None:
    """A tail of somebody who is removed, logs out, or may see other topics now."""
    topic = make_topic(shared_broker.bootstrap_servers)
    url = served(users=Users.load(file)).url
    path = f"/c/test/topics/{topic}/records/tail"

    def tail(browser: Browser) -> Callable[[], str]:
        found: list[str] = []
        begun = threading.Event()

        def read() -> None:
            with browser.stream("GET", path) as answer:
                for line in answer.iter_lines():
                    found.append(line)
                    begun.set()
                    if line.startswith("event: failed"):
                        break

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert begun.wait(20)
        return lambda: (thread.join(20), found[-1])[1]

    with Browser(url) as ann, Browser(url) as olga:
        ann.log_in("ann", "annann")
        last = tail(ann)
        written(file, f"olga:operator:{HASHES['olga']}")
        assert last() == "event: failed"
        olga.log_in("olga", "olgaolga")
        last = tail(olga)
        assert olga.submit("/c/test", "/logout").status_code == 303
        assert last() == "event: failed"
        assert becomes(lambda: olga.log_in("olga", "olgaolga").status_code == 303)
        last = tail(olga)
        written(file, f"olga:operator:{HASHES['olga']}:pub-*")
        assert last() == "event: failed"


def test_a_form_that_takes_its_time_is_of_whoever_its_sender_is_by_then(
    served: Callable[..., Served], file: Path, new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """The first half came from an admin; before the second the file of users has made a viewer of her."""
    name, log = new_topic_name(), tmp_path / "audit"
    url = served(users=Users.load(file), audit_log=log).url
    address = urlsplit(url)
    with Browser(url) as ann:
        ann.log_in("ann", "annann")
        body = urlencode({"name": name, "token": ann.token("/c/test/new-topic")}).encode()
        cookie = "; ".join(f"{key}={value}" for key, value in ann.cookies.items())
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
            connection.sendall(
                f"POST /c/test/create-topic HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(body)}\r\n"
                f"Cookie: {cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            # The console knows who asks, and waits for the form.
            assert connection.recv(65536).startswith(b"HTTP/1.1 100")
            written(file, f"ann:viewer:{HASHES['ann']}")
            connection.sendall(body)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.split()[1] == b"403" and b"The session is over" in answer, answer
        assert ann.get(f"/c/test/topics/{name}").status_code == 404
    assert "The session is over" in log.read_text().splitlines()[-1]


def test_a_form_of_a_lower_role_is_not_read(served: Callable[..., Served], users: Users) -> None:
    with Browser(served(users=users).url) as vera:
        vera.log_in("vera", "veravera")
        for size in (10, 5 << 20):
            answer = vera.post("/c/test/create-topic", content=b"x" * size)
            assert answer.status_code == 403 and "needs the role admin" in answer.text
