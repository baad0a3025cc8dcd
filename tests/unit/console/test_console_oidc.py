"""Logging in with OpenID Connect, and everything that a stranger, a wrong provider or a changed answer would try."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from console_served import Browser, Served
from oidc_provider import CLIENT, SECRET, Provider

from fastq.console.config import ClusterConfig, ConsoleConfig, load_file
from fastq.console.oidc_settings import CALLBACK, OidcSettings, RoleRule, parse_oidc
from fastq.console.users import Role, Users
from fastq.errors import ConfigError

RULES = (RoleRule("kafka-admins", Role.ADMIN), RoleRule("staff", Role.VIEWER, ("pub-*",)))


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    one = Provider()
    yield one
    one.close()


@pytest.fixture(scope="module")
def settings(provider: Provider) -> OidcSettings:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return OidcSettings(provider.url, CLIENT, f"http://127.0.0.1:{port}{CALLBACK}", RULES, SECRET, timeout_s=5)


@pytest.fixture(scope="module")
def entered(
    served_to_all: Callable[..., Served], settings: OidcSettings, users: Users, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The audit log of a console with the provider and with users of its own."""
    log = tmp_path_factory.mktemp("oidc") / "audit"
    served_to_all(oidc=settings, users=users, port=urlsplit(settings.redirect_uri).port, audit_log=log)
    return log


@pytest.fixture
def browser(entered: Path, settings: OidcSettings, provider: Provider) -> Iterator[Browser]:
    provider.be()
    with Browser(settings.origin) as client:
        yield client


def begun(browser: Browser) -> str:
    """Where the console sends the browser to."""
    answer = browser.get("/login/oidc")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def sent_back(browser: Browser) -> str:
    """Where the provider sends it back to."""
    answer = httpx.get(begun(browser), trust_env=False)
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def refused(answer: httpx.Response, words: str, status: int = 403) -> None:
    assert answer.status_code == status and words in answer.text, (answer.status_code, answer.text)
    assert "code-" not in answer.text and SECRET not in answer.text


def is_in(browser: Browser) -> bool:
    return browser.get("/c/test").status_code == 200


def test_a_login_and_a_logout(browser: Browser, settings: OidcSettings, entered: Path) -> None:
    page = browser.get("/login")
    assert 'href="/login/oidc"' in page.text and 'type="password"' in page.text
    before = browser.cookies["fastq_console"]
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begun(browser)).query).items()}
    assert asked["redirect_uri"] == settings.redirect_uri and len(asked["state"]) == len(asked["nonce"]) == 43
    answer = browser.get(sent_back(browser))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in answer.headers["set-cookie"].lower() and "samesite=lax" in answer.headers["set-cookie"].lower()
    assert browser.cookies["fastq_console"] != before  # nobody's cookie of before becomes one that is logged in
    assert "ann (admin)" in browser.get("/c/test").text
    with Browser(settings.origin) as other:
        other.cookies.set("fastq_console", before)
        assert not is_in(other)
    left = browser.submit("/c/test", "/logout")
    assert (left.status_code, left.headers["location"]) == (303, "/login?out=1")
    assert not is_in(browser) and "Log out of the provider too" in browser.get("/login?out=1").text
    lines = [json.loads(line) for line in entered.read_text().splitlines()]
    assert [(line["who"], line["outcome"]) for line in lines if line["what"] == "login"][-1] == ("ann (42)", "done")
    assert SECRET not in entered.read_text() and "code-" not in entered.read_text()


@pytest.mark.parametrize("sign", ["ES256", "without kid"])
def test_other_signatures_of_the_provider_are_taken(browser: Browser, provider: Provider, sign: str) -> None:
    provider.be(sign=sign)
    assert browser.get(sent_back(browser)).status_code == 303 and is_in(browser)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sign": "none"}, "not signed by a key"),
        ({"sign": "HS256 by the public key"}, "not signed by a key"),
        ({"sign": "HS256 by the secret"}, "not signed by a key"),
        ({"sign": "another key"}, "not signed by a key"),
        ({"sign": "changed afterwards"}, "not signed by a key"),
        ({"sign": "no token"}, "not signed by a key"),
        ({"claims": {"nonce": "x"}}, "nonce is another"),
        ({"claims": {"nonce": None}}, "nonce is another"),
        ({"claims": {"nonce": "\ud800"}}, "nonce is another"),
        ({"claims": {"aud": "another"}}, "another client (aud)"),
        ({"claims": {"aud": [CLIENT, "another"]}}, "another client (azp)"),
        ({"claims": {"azp": "another"}}, "another client (azp)"),
        ({"claims": {"iss": "http://127.0.0.1:1"}}, "its issuer is another"),
        ({"claims": {"exp": -61, "iat": -400}}, "expired"),
        ({"claims": {"iat": 90}}, "a time to come"),
        ({"claims": {"nbf": 90}}, "a time to come"),
        ({"claims": {"exp": None}}, "its times"),
        ({"claims": {"iat": "now"}}, "its times"),
        ({"claims": {"exp": True}}, "its times"),
        ({"claims": {"sub": None}}, "no subject"),
        ({"claims": {"preferred_username": None}}, "no name in preferred_username"),
        ({"claims": {"preferred_username": "a\nb"}}, "no name in preferred_username"),
        ({"claims": {"groups": ["guests"]}}, "has no role"),
        ({"claims": {"groups": {"staff": "x"}}}, "has no role"),
        ({"claims": {"groups": None}}, "has no role"),
    ],
    ids=str,
)
def test_what_is_no_identity_for_this_login_is_refused(
    browser: Browser, provider: Provider, how: dict[str, Any], words: str
) -> None:
    provider.be(**how)
    refused(browser.get(sent_back(browser)), words)
    assert not is_in(browser)


def test_clocks_may_differ_a_little(browser: Browser, provider: Provider) -> None:
    for times in ({"exp": -50, "iat": -400}, {"iat": 50, "nbf": 50}):
        provider.be(claims=times)
        assert browser.get(sent_back(browser)).status_code == 303, times


def test_the_first_role_that_fits_counts(browser: Browser, provider: Provider) -> None:
    provider.be(claims={"groups": ["staff"], "preferred_username": "vera"})
    browser.get(sent_back(browser))
    assert "vera (viewer)" in browser.get("/c/test").text
    assert (
        browser.get("/c/test/topics/hidden").status_code == 404 and browser.get("/c/test/new-topic").status_code == 403
    )
    provider.be(claims={"groups": "staff"})  # a provider may write one as no list
    browser.get(sent_back(browser))
    assert "ann (viewer)" in browser.get("/c/test").text


def test_what_was_not_begun_here_is_refused(browser: Browser, settings: OidcSettings) -> None:
    back = sent_back(browser)
    state = parse_qs(urlsplit(back).query)["state"][0]
    for wrong in (back.replace(state, "x" * 43), back.replace("state=", "other="), f"{settings.origin}{CALLBACK}"):
        refused(browser.get(wrong), "not begun here")
    with Browser(settings.origin) as victim:
        # A stranger's login put upon somebody, with a session of their own or without.
        refused(victim.get(back), "in another browser")
        refused(victim.get(back), "not begun here")
        victim.get("/login")
        refused(victim.get(sent_back(browser)), "in another browser")
        assert not is_in(victim)
    refused(browser.get(back), "not begun here")  # it was taken, whoever brought it


def test_a_login_is_taken_once(browser: Browser, settings: OidcSettings) -> None:
    back = sent_back(browser)
    assert browser.get(back).status_code == 303
    refused(browser.get(back), "not begun here")
    code = parse_qs(urlsplit(back).query)["code"][0]
    with Browser(settings.origin) as thief:  # with a login of their own, and somebody's code
        for stolen in (code, parse_qs(urlsplit(sent_back(browser)).query)["code"][0]):
            query = parse_qs(urlsplit(begun(thief)).query)
            values = {"state": query["state"][0], "code": stolen, "iss": settings.issuer}
            refused(thief.get(CALLBACK, params=values), "invalid_grant")
        assert not is_in(thief)


def test_answers_of_other_forms_are_refused(browser: Browser, settings: OidcSettings) -> None:
    for values, words in (
        ({"error": "access_denied"}, "did not log you in: access_denied"),
        ({"error": "<script>alert(1)</script>"}, "an error of no known form"),
        ({"code": ""}, "has no code in it"),
        ({"code": "x" * 5_000}, "has no code in it"),
        ({"code": "x", "iss": "https://another.example"}, "of another provider"),
        ({"code": "x", "iss": ""}, "of another provider"),
    ):
        state = parse_qs(urlsplit(begun(browser)).query)["state"][0]
        answer = browser.get(CALLBACK, params={"iss": settings.issuer, **values, "state": state})
        refused(answer, words)
        assert "<script>a" not in answer.text


def test_no_address_comes_from_the_browser(browser: Browser, settings: OidcSettings, provider: Provider) -> None:
    evil = {"next": "//evil.example", "redirect_uri": "https://evil.example/", "return": "https://evil.example/"}
    sent = browser.get(
        "/login/oidc",
        params={**evil, "moved": "1"},
        headers={"host": "evil.example", "x-forwarded-host": "evil.example"},
    )
    assert sent.headers["location"].startswith(f"{provider.url}/authorize?") and "evil" not in sent.headers["location"]
    moved = browser.get("/login/oidc", headers={"host": "evil.example"})
    assert moved.headers["location"] == f"{settings.origin}/login/oidc?moved=1"
    assert browser.get(sent_back(browser), params=None).headers["location"] == "/"
    back = sent_back(browser) + "&next=//evil.example&redirect_uri=https://evil.example/"
    assert browser.get(back).headers["location"] == "/"


def test_keys_are_changed(browser: Browser, provider: Provider) -> None:
    assert browser.get(sent_back(browser)).status_code == 303
    provider.be(rotate=True)
    assert browser.get(sent_back(browser)).status_code == 303  # asked for at once, as its name is not known
    provider.be(rotate=True, sign="without kid")
    assert browser.get(sent_back(browser)).status_code == 303
    seen = len(provider.be(sign="another key")["seen"])
    refused(browser.get(sent_back(browser)), "not signed")
    asked = provider.be()["seen"][seen:]
    assert asked.count("/keys") <= 1  # and not again for a known name


def test_a_provider_that_does_not_answer_is_a_sentence(
    served: Callable[..., Served], settings: OidcSettings, users: Users, provider: Provider
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = nobody.getsockname()[1]
    provider.be(hang="/token")
    here = replace(settings, redirect_uri=f"http://127.0.0.1:{free}{CALLBACK}", timeout_s=1)
    served(oidc=here, users=users, port=free)
    with Browser(here.origin) as browser:
        refused(browser.get(sent_back(browser)), "does not answer within 1 s", 502)
        for how, words in (
            ({"redirect": "/token"}, "answered 307"),
            ({"hang": "/keys"}, "does not answer within 1 s"),
        ):
            provider.be(**how)
            refused(browser.get(sent_back(browser)), words, 502)
        assert "/elsewhere" not in provider.be()["seen"]
        assert browser.get(sent_back(browser)).status_code == 303


def test_a_provider_that_is_not_there(served: Callable[..., Served], settings: OidcSettings, users: Users) -> None:
    """The console starts and says so, and the users of its file get in."""
    with socket.create_server(("127.0.0.1", 0)) as nobody, socket.create_server(("127.0.0.1", 0)) as other:
        gone, free = nobody.getsockname()[1], other.getsockname()[1]
    here = replace(settings, issuer=f"http://127.0.0.1:{gone}", redirect_uri=f"http://127.0.0.1:{free}{CALLBACK}")
    served(oidc=here, users=users, port=free)
    with Browser(here.origin) as browser:
        for _ in range(2):
            refused(browser.get("/login/oidc"), f"127.0.0.1:{gone} cannot be reached", 502)
        assert browser.log_in("ann", "annann").status_code == 303 and is_in(browser)


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"issuer": "http://127.0.0.1:1"}, " but of http://127.0.0.1:1: [oidc] is to have it"),
        ({"token_endpoint": "http://evil.example/token"}, "token_endpoint is no https address"),
        ({"jwks_uri": None}, "jwks_uri is no https address"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is no https address"),
    ],
    ids=str,
)
def test_a_provider_must_be_what_the_settings_say(
    served: Callable[..., Served], settings: OidcSettings, provider: Provider, configuration: dict[str, Any], words: str
) -> None:
    provider.be(configuration=configuration)
    console = served(oidc=settings)  # at another address: it does not come so far
    with Browser(console.url) as browser:
        refused(browser.get("/login/oidc?moved=1"), words, 502)


def test_a_secret_in_the_form_a_wrong_one_and_large_answers(
    served: Callable[..., Served], settings: OidcSettings, provider: Provider
) -> None:
    for how, secret, status, words in (
        ({"token_endpoint_auth_methods_supported": ["client_secret_post"]}, SECRET, 303, ""),
        ({}, "wrong", 403, "refused the login: invalid_client"),
        ({}, None, 403, "refused the login: invalid_client"),
        ({"token_endpoint": f"{settings.issuer}/large"}, SECRET, 502, "more than 1 MiB"),
        ({"end_session_endpoint": "javascript:alert(1)"}, SECRET, 303, ""),
    ):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        here = replace(settings, redirect_uri=f"http://127.0.0.1:{free}{CALLBACK}", secret=secret)
        served(oidc=here, port=free)
        provider.be(configuration=how)
        with Browser(here.origin) as browser:
            answer = browser.get(sent_back(browser))
            assert answer.status_code == status and words in answer.text, (how, answer.text)
            assert "javascript" not in browser.get("/login?out=1").text
            # No file of users.
            assert browser.post("/login", data={"name": "ann", "password": "annann"}).status_code == 404


def test_over_tls_a_cookie_does_not_go_without(served: Callable[..., Served], settings: OidcSettings) -> None:
    there = replace(settings, redirect_uri=f"https://Console.Example:443{CALLBACK}")
    assert there.origin == "https://console.example"
    with Browser(served(oidc=there).url) as browser:
        assert browser.get("/login/oidc").headers["location"] == "https://console.example/login/oidc?moved=1"
        sent = browser.get("/login/oidc", headers={"host": "console.example"})
        assert "; secure" in sent.headers["set-cookie"].lower()
        cookie = sent.headers["set-cookie"].partition("=")[2].partition(";")[0]
        again = browser.get("/login", headers={"cookie": f"fastq_console={cookie}"})
        assert "set-cookie" not in again.headers  # it would lose that


# -- the settings --------------------------------------------------------------------------------------------------------------


def table(**more: Any) -> dict[str, Any]:
    known = {
        "issuer": "https://login.example",
        "client_id": "console",
        "redirect_uri": f"https://console.example{CALLBACK}",
    }
    return {
        name: value
        for name, value in {**known, "role": [{"value": "g", "role": "admin"}], **more}.items()
        if value is not None
    }


def test_the_table_of_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    found = parse_oidc(table(client_secret_file=str(secret), roles_claim="realm_access.roles", skew_s=5), "x")
    assert found.secret == "hunter2" and found.roles_claim == ("realm_access", "roles") and found.skew_s == 5
    assert "hunter2" not in repr(found) and "hunter2" not in repr(ConsoleConfig((), oidc=found))
    assert parse_oidc(table(client_secret_env="S"), "x", {"S": "hunter3"}).secret == "hunter3"
    assert parse_oidc(table(roles_claim="$['https://a.example/roles']"), "x").roles_claim == (
        "https://a.example/roles",
    )
    assert parse_oidc(table(issuer="http://localhost:8080/realms/a"), "x").secret is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"issuer": None}, "issuer = .* is missing"),
        ({"issuer": "http://login.example"}, "issuer is https"),
        ({"issuer": "https://[bad"}, "issuer is https"),
        ({"issuer": "http://ann:hunter2@login.example"}, "issuer is https"),
        ({"issuer": "https://ann:hunter2@login.example/realms/a"}, "issuer is https.* without a login"),
        ({"issuer": "https://login.example/realms/a?of=b"}, "issuer is https.* without a login"),
        ({"redirect_uri": f"http://ann:hunter2@console.example{CALLBACK}"}, "redirect_uri is https"),
        ({"redirect_uri": f"https://ann:hunter2@console.example{CALLBACK}"}, "redirect_uri is the console's own"),
        (
            {"redirect_uri": "https://console.example/"},
            "redirect_uri is the console's own address and /login/oidc/back",
        ),
        ({"redirect_uri": f"https://console.example@evil.example{CALLBACK}"}, "redirect_uri is the console's own"),
        ({"client_secret": "hunter2"}, "a secret does not stand here"),
        ({"client_secret_file": "a", "client_secret_env": "b"}, "one of them is enough"),
        ({"client_secret_env": "NOT_THERE"}, "no NOT_THERE in the environment"),
        ({"scopes": "profile"}, "have openid in them"),
        ({"role": None}, "nobody would have a role"),
        ({"role": [{"value": "g", "role": "owner"}]}, "none of viewer, operator, admin"),
        ({"role": [{"value": "g", "role": "admin", "topics": []}]}, "no pattern in it"),
        ({"role": [{"value": "g", "role": "admin", "groups": 1}]}, "it has value, role and"),
        ({"roles_claim": "$"}, "names a claim"),
        ({"name_claim": "a..b"}, "not understood"),
        ({"skew_s": 9_999}, "from 0 to 300"),
        ({"timeout_s": True}, "from 1 to 60"),
        ({"url": "x"}, "url is not known"),
    ],
    ids=str,
)
def test_settings_that_are_none(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_oidc(table(**more), "console.toml: [oidc]", {})
    assert "hunter2" not in str(caught.value)


def test_the_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "console.toml"
    lines = "\n".join(f'{name} = "{value}"' for name, value in table(role=None).items())
    path.write_text(
        f'[clusters.a]\nbootstrap = "x:1"\n[oidc]\n{lines}\n[[oidc.role]]\nvalue = "*"\nrole = "viewer"\ntopics = ["pub-*"]\n'
    )
    found = load_file(path)
    assert found.oidc is not None and found.oidc.rules == (RoleRule("*", Role.VIEWER, ("pub-*",)),)
    config = ConsoleConfig(tuple(found.clusters), host="0.0.0.0", oidc=found.oidc).check()
    assert config.has_login and config.allowed_hosts is None
    named = ConsoleConfig((ClusterConfig("a", {}),), oidc=found.oidc, names=frozenset({"other.example"}))
    assert named.allowed_hosts is not None and {"console.example", "other.example"} <= named.allowed_hosts
