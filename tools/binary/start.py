"""What the programs of the binary run first, in the place of the scripts that pip makes."""

import os
import sys

from start_build import CA_DEFAULTS

_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)


def broker() -> None:
    _find_certificates()
    from fastq_broker.__main__ import main

    sys.exit(main())


def fastq() -> None:
    _find_certificates()
    from fastq.cli import main

    sys.exit(main())


def _find_certificates() -> None:
    """OpenSSL looks for the machine's certificates where they were on the machine that it was built on."""
    if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ or any(map(os.path.exists, CA_DEFAULTS)):
        return
    for path in _CA_FILES:
        if os.path.exists(path):
            os.environ["SSL_CERT_FILE"] = path
            return
