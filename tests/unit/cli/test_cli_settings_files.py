"""Settings from files: which win, which are passed over, and what is told of the others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from fastq.cli.clients import Default, client_settings
from fastq.cli.entry import build_parser
from fastq.cli.output import UsageError


def options(*arguments: str) -> argparse.Namespace:
    found: argparse.Namespace = build_parser().parse_args(arguments)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(
        "# what Kafka's tools are given\nbootstrap.servers=file:1\nsecurity.protocol = SSL\nacks=1\ngroup.id=g\n"
        "auto.offset.reset=earliest\nkey.deserializer=org.apache.kafka.common.serialization.StringDeserializer\n"
    )
    return path


def test_a_key_that_is_there_twice_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "acks=all\n")
    given = options("produce", "t", "--command-config", str(config))
    assert client_settings(given, "producer")["acks"] == "all"
    assert (
        capsys.readouterr().err
        == f"fastq: warning: {config}: acks is in line 4 and again in line 8: the last one holds\n"
    )


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "fastq" / "profiles.toml"
    path.parent.mkdir()
    path.write_text('[prod]\nbootstrap.servers = "prod:1"\nclient.id = "me"\nsecurity.protocol = "SASL_SSL"\n[dev]\n')
    return path


@pytest.mark.usefixtures("profiles")
def test_what_wins(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTQ_BOOTSTRAP", "env:1")

    def settings(*more: str) -> dict[str, Any]:
        given = options("--profile", "prod", "consume", "t", *more)
        return client_settings(given, "consumer", auto_offset_reset=Default("latest"), isolation_level="read_committed")

    assert settings() == {
        "bootstrap.servers": "prod:1",
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "auto_offset_reset": "latest",
        "isolation_level": "read_committed",
    }
    both = settings("--command-config", str(config))
    assert (both["bootstrap.servers"], both["security.protocol"], both["client.id"]) == ("file:1", "SSL", "me")
    assert both["auto.offset.reset"] == "earliest" and "auto_offset_reset" not in both
    asked = settings(
        "--command-config", str(config), "--bootstrap", "asked:1", "--property", "security.protocol=PLAINTEXT"
    )
    assert (asked["bootstrap_servers"], asked["security.protocol"]) == ("asked:1", "PLAINTEXT")


def test_a_file_serves_every_kind_of_client(config: Path) -> None:
    given = options("topics", "list", "--command-config", str(config))
    assert client_settings(given) == {"bootstrap.servers": "file:1", "security.protocol": "SSL"}
    assert client_settings(given, "producer", acks=Default("all"))["acks"] == "1"
    assert client_settings(given, "producer", acks="all")["acks"] == "all"
    assert client_settings(given, "consumer")["group.id"] == "g"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocl=SSL", "client.properties: security.protocl is not known, did you mean security.protocol?"),
        ("zzz=1", "it is no client setting"),
        ("a=\\u00", "four hexadecimal digits"),
    ],
)
def test_a_bad_file_is_named(config: Path, text: str, words: str) -> None:
    config.write_text(text + "\n")
    with pytest.raises(UsageError) as caught:
        client_settings(options("topics", "list", "--command-config", str(config)))
    assert words in str(caught.value) and str(config) in str(caught.value)


SETTINGS = "# été\r\nclient.id = caf\u00e9\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_a_file_in_what_editors_write(config: Path, encoding: str) -> None:
    config.write_bytes(SETTINGS.encode(encoding))
    assert client_settings(options("topics", "list", "--command-config", str(config)))["client.id"] == "caf\u00e9"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (SETTINGS.encode("utf-16"), "it is UTF-16 or UTF-32: save it as UTF-8"),
        (SETTINGS.encode("utf-32"), "it is UTF-16 or UTF-32: save it as UTF-8"),
        (b"a=\x00\xff", "byte 0xff at position 3 is no UTF-8"),
    ],
)
def test_a_file_that_is_no_text(config: Path, data: bytes, words: str) -> None:
    config.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        client_settings(options("topics", "list", "--command-config", str(config)))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        client_settings(options("topics", "list", "--command-config", str(tmp_path)))


def test_values_of_a_profile_are_those_of_properties(profiles: Path) -> None:
    profiles.write_bytes(
        b"\xef\xbb\xbf[prod]\r\nclient.id = 7\r\nbootstrap.servers = ['a:1', 'b:2']\r\nreconnect.backoff.ms = 5"
    )
    found = client_settings(options("--profile", "prod", "topics", "list"))
    assert (found["client.id"], found["reconnect.backoff.ms"]) == ("7", "5")
    assert found["bootstrap.servers"] == ["a:1", "b:2"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        client_settings(options("topics", "list", "--command-config", str(tmp_path / "none")))


def test_profiles_that_are_not_there(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no table \[prd\], did you mean prod\?"):
        client_settings(options("--profile", "prd", "topics", "list"))
    with pytest.raises(UsageError, match="it has dev, prod"):
        client_settings(options("--profile", "zzz", "topics", "list"))
    monkeypatch.setenv("FASTQ_PROFILE", "dev")
    assert client_settings(options("topics", "list"))["bootstrap_servers"]
    profiles.write_text("[")
    with pytest.raises(UsageError, match=r"profiles\.toml"):
        client_settings(options("topics", "list"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(profiles.parent))
    with pytest.raises(UsageError, match=str(profiles.parent / ".config" / "fastq")):
        client_settings(options("topics", "list"))
