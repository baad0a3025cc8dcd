"""A login with a provider of identities in a browser: its cookies, its redirects, and what its content security policy lets through."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from chromium import Chromium

from fastq.testing import Broker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Served
from oidc_provider import CLIENT, SECRET, Provider

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.oidc_settings import CALLBACK, OidcSettings, RoleRule
from fastq.console.users import Role

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own


def test_a_login_with_a_provider(shared_broker: Broker, tmp_path: Path) -> None:
    provider = Provider()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    back = f"http://localhost:{port}{CALLBACK}"
    oidc = OidcSettings(provider.url, CLIENT, back, (RoleRule("kafka-admins", Role.ADMIN),), SECRET)
    cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers})
    served = Served(ConsoleConfig((cluster,), port=port, oidc=oidc))
    try:
        with Chromium(tmp_path) as browser:
            browser.go(served.url)  # by its number, and not by the name that the provider knows
            assert browser.violations() == []
            browser.click("main a.button")
            browser.until_text("ann (admin)")
            assert browser.run("location.origin") == f"http://localhost:{port}"
            browser.click("header form button")
            browser.until_text("Log out of the provider too")
            assert browser.violations() == []
            provider.be(claims={"groups": []})
            browser.click("main a.button")
            browser.until_text("ann has no role in this console")
            assert browser.violations() == []
            assert [trouble for trouble in browser.troubles if "403" not in trouble] == []
    finally:
        served.close()
        provider.close()
