"""What a console is started with, and what becomes of clusters that do not answer."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from console_served import Browser, Served

from fastq.admin import ConfigEntry
from fastq.cli import main
from fastq.console.app import Console
from fastq.console.audit import AuditLog
from fastq.console.config import ClusterConfig, ConsoleConfig, load_file
from fastq.console.users import _Hash
from fastq.errors import ConfigError
from fastq.testing import Broker


def test_the_file_of_clusters_and_masks(tmp_path: Path) -> None:
    path = tmp_path / "console.toml"
    path.write_text(
        """
[clusters.prod]
bootstrap = "kafka:9092"
schema_registry = "http://registry:8081"
[clusters.prod.properties]
"security.protocol" = "SSL"
[clusters.test]
bootstrap = "127.0.0.1:9092"
[[mask]]
topics = "pay*"
path = "$.card"
"""
    )
    found, masks, *_ = load_file(path)
    assert [cluster.name for cluster in found] == ["prod", "test"]
    assert found[0].settings == {"bootstrap.servers": "kafka:9092", "security.protocol": "SSL"}
    assert [(mask.topics, mask.part, mask.path) for mask in masks] == [("pay*", "value", ("card",))]
    for text, words in (
        ("[clusters.a]", "bootstrap"),
        ('[clusters."a/b"]\nbootstrap = "x:1"', "letters, digits"),
        ('[clusters.a]\nbootstrap = "x:1"\nurl = "x"', "url is not known"),
        ("clusters = 1", "table is expected"),
        ("[clusters", "console.toml"),
        ("[mask]", "\\[\\[mask\\]\\]"),
        ('[[mask]]\nin = "body"', "one of key, value, header"),
        ('[[mask]]\npath = "$.["', "not understood"),
        ("[other]", "other is not known"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_file(path)
    with pytest.raises(ConfigError, match="needs a cluster"):
        ConsoleConfig(()).check()
    with pytest.raises(ConfigError, match="go together"):
        ConsoleConfig((found[1],), key=path).check()


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert main(["console", "--listen", "0.0.0.0:0"]) == 2 and "--users FILE" in capsys.readouterr().err
    assert main(["console", "--users", str(tmp_path / "none")]) == 1 and "no such file" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["console", "--listen", place]) == 1
        assert f"cannot listen on {place}: Address already in use; choose another" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_NoTerminal(b"secret\n")))
    capsys.readouterr()
    assert main(["console", "hash-password"]) == 0
    assert _Hash.of(capsys.readouterr().out.strip()).fits("secret")


def test_what_cannot_be_served_is_told_at_the_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And not by the first page that needs it, nor in OpenSSL's words, which name no file."""
    pem = tmp_path / "no.pem"
    pem.write_text("no PEM")
    for options, code, words in (
        (("--schema-registry", "nonsense"), 2, "url is http://host:port"),
        (("--schema-registry", "me:hush@h:8081"), 2, "got '***@h:8081'"),
        (("--bootstrap", "me:hush@h:9092"), 2, "'***@h:9092'; allowed: HOST:PORT without a login"),
        (("--property", "foo=bar"), 2, "foo"),
        (("--tls-certificate", str(pem), "--tls-key", str(pem)), 2, f"--tls-key {pem} are no PEM chain"),
        (("--tls-certificate", str(pem), "--tls-key", str(tmp_path / "none")), 1, "none: no such file"),
    ):
        assert main(["console", "--listen", "127.0.0.1:0", *options]) == code, options
        told = capsys.readouterr()
        assert words in told.err and "fastq console on" not in told.out and "hush" not in told.err, told


class _NoTerminal(io.BytesIO):
    def fileno(self) -> int:
        return 99_999  # os.isatty is false for what is not open


def test_a_cluster_that_does_not_answer_is_a_sentence(served: Callable[..., Served], shared_broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    gone = ClusterConfig("gone", {"bootstrap.servers": address, "default.api.timeout.ms": "400"})
    here = ClusterConfig("here", {"bootstrap.servers": shared_broker.bootstrap_servers})
    with Browser(served(clusters=(gone, here)).url) as browser:
        home = browser.get("/").text
        assert ">gone<" in home and 'class="bad"' in home and 'class="good">answers' in home
        answer = browser.get("/c/gone/topics")
        assert answer.status_code == 502 and "cannot be reached" in answer.text
        assert browser.get("/c/here").status_code == 200


def test_what_is_sensitive_is_not_shown() -> None:
    console = Console(ConsoleConfig((ClusterConfig("x", {"bootstrap.servers": "h:1", "sasl.password": "hunter2"}),)))
    entries = [
        ConfigEntry("ssl.key.password", "hunter2", is_sensitive=True),
        ConfigEntry("a", "<b>"),
        ConfigEntry("c", None),
    ]
    defaults = {"ssl.key.password": "hunter2", "a": "<i>", "c": None}
    shown = console.render("configs.html", configs=entries, defaults=defaults)
    assert "hunter2" not in shown and "not shown" in shown and "&lt;b&gt;" in shown and "&lt;i&gt;" in shown


def test_the_audit_log_has_a_line_for_each(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for _ in range(2):  # appended to
        log = AuditLog(path, lambda: 1_767_225_600.25)
        log.write(who="a\nb", address="::1", what="x", cluster=None, on={"topic": "t" * 9_999}, outcome="\u2028")
        log.close()
        log.close()
    lines = path.read_bytes().splitlines()
    found = json.loads(lines[0])
    assert len(lines) == 2 and lines[0].isascii() and found["time"] == "2026-01-01T00:00:00.250Z"
    assert found["who"] == "a\nb" and len(found["on"]["topic"]) == 2_000


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (sys.executable, ("pip install joserfc httpx (import of joserfc",)),
        (
            "/tmp/fastq-0/x/bin/fastq-python",
            ("this one file does not hold", "pip install joserfc httpx", "--users"),
        ),
    ],
    ids=["installed", "one file"],
)
def test_a_login_whose_packages_are_not_here_is_told_at_the_start(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    python: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "fastq.console.oidc", raising=False)
    path = tmp_path / "console.toml"
    path.write_text(
        '[clusters.a]\nbootstrap = "127.0.0.1:1"\n[oidc]\nissuer = "https://login.example"\nclient_id = "c"\n'
        'redirect_uri = "https://console.example/login/oidc/back"\n[[oidc.role]]\nvalue = "*"\nrole = "viewer"\n'
    )
    assert main(["console", "--config", str(path), "--listen", "127.0.0.1:0"]) == 2
    told = capsys.readouterr()
    assert all(word in told.err for word in words) and "fastq console on" not in told.out
    assert len(told.err.splitlines()) == 1
