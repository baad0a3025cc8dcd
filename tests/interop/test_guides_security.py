"""The programs of docs/guides/security.md run as they stand, against Apache Kafka with TLS and SCRAM; only the address differs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apache_kafka
import pytest
from apache_kafka import ApacheKafka, free_port, run_tool

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "tests" / "unit" / "net" / "loopback.pem"

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """The address of a listener that wants TLS and SCRAM, with a user alice."""
    port, plain, controller = free_port(), free_port(), free_port()
    kafka = ApacheKafka(
        properties={
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(CERTIFICATE),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(CERTIFICATE),
        }
    )
    kafka.port, kafka.controller_port = plain, controller
    with kafka:
        change = ["--alter", "--add-config", "SCRAM-SHA-512=[password=wonderland]"]
        where = ["--bootstrap-server", f"127.0.0.1:{plain}", "--entity-type", "users", "--entity-name", "alice"]
        run_tool("kafka.admin.ConfigCommand", *where, *change)
        yield f"127.0.0.1:{port}"


def test_every_program_of_the_guide_runs(secured: str, tmp_path: Path) -> None:
    shutil.copy(CERTIFICATE, tmp_path / "ca.pem")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/security.md").read_text(), re.DOTALL)
    printed = []
    for block in blocks:
        program = block.replace("kafka.example.com:9093", secured)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout)
    assert "orders" in printed[0]
    assert printed[1].startswith("SaslAuthenticationFailed"), printed[1]
    assert "a guess" not in printed[1]
