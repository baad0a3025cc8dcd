"""TLS, without sockets: Python's ssl module over memory buffers.

Rules of this file: both drivers move cipher text only and know nothing of TLS, so that the handshake is a phase of the
connection like any other, runs under the simulator, and behaves the same with asyncio, uvloop and blocking sockets.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from fastq.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastq.config import ClientConfig

CIPHER_CHUNK_BYTES = 64 * 1024
T = TypeVar("T")


def client_context(config: ClientConfig) -> ssl.SSLContext:
    """The SSLContext that the ssl_ keys of `config` describe. Raises ConfigError naming the key whose file cannot be
    used.
    """
    if config.ssl_context is not None:
        return config.ssl_context
    context = _trusting(config)
    if "TLSv1.2" not in config.ssl_enabled_protocols:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    if "TLSv1.3" not in config.ssl_enabled_protocols:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if config.ssl_endpoint_identification_algorithm != "https":
        context.check_hostname = False
    if config.ssl_cipher_suites:
        _guarded("ssl_cipher_suites", lambda: context.set_ciphers(":".join(config.ssl_cipher_suites)))
    if config.ssl_keystore_location:
        _guarded(
            "ssl_keystore_location",
            lambda: context.load_cert_chain(
                str(config.ssl_keystore_location), config.ssl_key_location, config.ssl_key_password
            ),
            config.ssl_keystore_location,
            "" if config.ssl_key_location is None else f" with ssl_key_location={config.ssl_key_location!r}",
            "; the client's certificates are in it, and their private key, unless ssl_key_location names its file",
        )
    elif config.ssl_keystore_certificate_chain:
        pem = f"{config.ssl_keystore_certificate_chain}\n{config.ssl_keystore_key or ''}\n"
        _guarded("ssl_keystore_certificate_chain", lambda: _load_pem(context, pem, config.ssl_key_password))
    return context


def _trusting(config: ClientConfig) -> ssl.SSLContext:
    """A context that trusts the certificates that `config` names, and no other; the system's where it names none."""
    path, text = config.ssl_truststore_location or None, config.ssl_truststore_certificates or None
    return _guarded(
        "ssl_truststore_location" if path else "ssl_truststore_certificates",
        lambda: ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=path, cadata=text),
        path,
    )


def _guarded(key: str, load: Callable[[], T], path: str | None = None, beside: str = "", needs: str = "") -> T:
    try:
        return load()
    except (OSError, ValueError) as error:
        # OpenSSL does not say which file: it is the one of the key, or of its private key.
        where = f"={path!r}{beside}" if path is not None else ""
        told = needs if isinstance(error, ssl.SSLError) else ""
        raise ConfigError(f"{key}{where} cannot be used: {getattr(error, 'strerror', None) or error}{told}") from error


def _load_pem(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    import tempfile

    # OpenSSL's loader, as Python has it, reads files only; mkstemp makes one that nobody else may read.
    handle, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        context.load_cert_chain(path, password=password)
    finally:
        os.unlink(path)


class TlsLayer:
    """One connection's TLS. Not thread-safe: the driver's turn only.

    Cipher text goes in by `feed` and out by `take_output`; plain text goes in by `encrypt` and out by `read_into`.
    """

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)

    def feed(self, data: Buffer) -> None:
        """Cipher text that was received."""
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Go on with the handshake as far as the bytes allow; True when it is complete. Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer`; 0 when more cipher text is needed. Raises EOFError at the peer's close,
        ssl.SSLError.
        """
        try:
            # typeshed knows only the form without a buffer, which returns bytes.
            count = cast("int", self._object.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            raise EOFError from None
        if count == 0:
            raise EOFError
        return count

    def encrypt(self, data: Buffer) -> None:
        """Encrypt all of `data`; the cipher text is added to what `take_output` gives."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self._object.write(view) :]

    def take_output(self) -> bytes:
        """The cipher text to be sent; empty when there is none."""
        return self._outgoing.read()
