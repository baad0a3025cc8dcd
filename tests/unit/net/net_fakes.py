"""A broker of a few lines for the tests of the client: real sockets, the generated messages, and misbehaviour on demand."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from fastq._native.wire import Reader
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_request, decode_request_header, encode_response
from fastq.protocol.messages import ApiVersionsResponse, MetadataResponse

Handler = Callable[[Any, int], Any]


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes, or EOFError."""
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def silent(sock: socket.socket) -> None:
    """A server that reads and says nothing."""
    sock.settimeout(10)
    receive_exactly(sock, 100_000)


def all_versions() -> list[ApiVersionsResponse.ApiVersion]:
    """What a broker that knows everything advertises."""
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=info.min_version, max_version=info.max_stable_version)
        for key, info in APIS.items()
    ]


class FakeBroker:
    """Listens on loopback; `handlers[api_key](request, version)` gives the response, None for no answer, bytes for rubbish.

    The default handlers answer ApiVersions and Metadata (a cluster of this one broker, with `topics` as name: partitions).
    """

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, node_id: int = 1) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, 0))
        self._listener.listen(32)
        self.host, self.port = host, self._listener.getsockname()[1]
        self.node_id = node_id
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.topics: dict[str, int] = {}
        self.requests: list[tuple[int, int, Any]] = []
        self.connections: list[socket.socket] = []
        self.accepted = 0
        self.versions = all_versions()
        self.handlers: dict[int, Handler] = {ApiKey.API_VERSIONS: self._api_versions, ApiKey.METADATA: self._metadata}
        self.on_connect: Callable[[socket.socket], None] | None = None
        self.write: Callable[[socket.socket, bytes], None] = lambda sock, data: sock.sendall(data)
        self._tls = tls
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing = True
        # accept() on another thread does not notice a close, and goes on listening; a shutdown ends it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Close what is open, as a broker that dies does."""
        for sock in self.connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.connections.clear()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self.connections.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self.connections.append(sock)
            if self.on_connect is not None:
                self.on_connect(sock)
                return
            while True:
                size = int.from_bytes(receive_exactly(sock, 4), "big")
                if size > 100 * 1024 * 1024:
                    return
                self._answer(sock, receive_exactly(sock, size))
        except (OSError, EOFError):
            pass
        finally:
            sock.close()

    def _answer(self, sock: socket.socket, frame: bytes) -> None:
        reader = Reader(frame)
        header = decode_request_header(reader)
        request = decode_request(header, reader)
        self.requests.append((header.api_key, header.api_version, request))
        response = self.handlers[header.api_key](request, header.api_version)
        if isinstance(response, bytes):
            self.write(sock, response)
        elif response is not None:
            version = header.api_version
            if header.api_key == ApiKey.API_VERSIONS and response.error_code == 35:
                version = 0
            self.write(sock, encode_response(header.correlation_id, response, version))

    def _api_versions(self, request: Any, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(api_keys=self.versions)

    def _metadata(self, request: Any, version: int) -> MetadataResponse:
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=self.node_id, host=self.host, port=self.port)],
            cluster_id="fake",
            controller_id=self.node_id,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponse.MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponse.MetadataResponseTopic(name=name, error_code=3)
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index,
                leader_id=self.node_id,
                leader_epoch=0,
                replica_nodes=[self.node_id],
                isr_nodes=[self.node_id],
            )
            for index in range(self.topics[name])
        ]
        return MetadataResponse.MetadataResponseTopic(
            name=name, topic_id=name.encode().ljust(16, b"."), partitions=partitions
        )
