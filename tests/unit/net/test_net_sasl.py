"""SASL mechanisms against the exchanges printed in the RFCs, and against servers that cheat."""

from __future__ import annotations

import base64

import pytest
from scram_server import SlowServer

from fastq.net.sasl import Plain, SaslError, Scram, mechanism, saslprep


def test_plain() -> None:
    login = Plain("tim", "tanstaaftanstaaf")
    assert login.first() == b"\0tim\0tanstaaftanstaaf"
    assert login.respond(b"") is None


def test_scram_sha_256_of_rfc_7677() -> None:
    login = Scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert login.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert login.respond(server_first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert login.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(("name", "algorithm"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_against_a_slow_server(name: str, algorithm: str) -> None:
    login, server = mechanism(name, "ann,e=x", "pass"), SlowServer(algorithm, "pass")
    assert b"n=ann=2Ce=3Dx," in login.first()
    answer = login.respond(server.first(login.first()))
    assert answer is not None
    assert login.respond(server.final(answer)) is None


def test_a_wrong_password_is_refused() -> None:
    login, server = mechanism("SCRAM-SHA-256", "ann", "wrong"), SlowServer("sha256", "right")
    answer = login.respond(server.first(login.first()))
    assert answer is not None
    with pytest.raises(SaslError, match="invalid-proof"):
        login.respond(server.final(answer))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"r=other,s=AAAA,i=4096",
        b"r=mine,s=AAAA,i=4096",
        b"r=mine2,s=AAAA,i=1",
        b"r=mine2,s=AAAA,i=99999999999",
        b"r=mine2,s=AAAA,i=x",
        b"r=mine2,s=!!,i=4096",
        b"m=ext,r=mine2,s=AAAA,i=4096",
    ],
)
def test_a_server_that_cheats_or_babbles(challenge: bytes) -> None:
    with pytest.raises(SaslError):
        Scram("SCRAM-SHA-256", "u", "p", nonce="mine").respond(challenge)


def test_a_server_without_the_password_is_found_out() -> None:
    login = Scram("SCRAM-SHA-256", "u", "p", nonce="mine")
    login.respond(b"r=mine2,s=AAAA,i=4096")
    with pytest.raises(SaslError, match="could not prove"):
        login.respond(b"v=" + base64.b64encode(bytes(32)))


def test_saslprep() -> None:
    # The examples of RFC 4013, section 3.
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("user") == "user" and saslprep("USER") == "USER"
    assert saslprep("\u00aa") == "a" and saslprep("\u2168") == "IX"
    with pytest.raises(SaslError):
        saslprep("\u0007")
