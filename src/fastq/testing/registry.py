"""A schema registry for tests: the part of Confluent's HTTP API that serializers use, in a thread, in memory.

    with SchemaRegistry() as registry:
        client = SchemaRegistryClient(registry.url)

Rules
- Subjects, versions, ids and references as in Confluent's: a schema has one id in all subjects, a version counts from 1.
- Compatibility is checked as far as tests need it, against the latest version: for Avro records that a reader of the new
  schema can read the old one (BACKWARD), the other way round (FORWARD) or both (FULL); for JSON Schema that nothing became
  required; Protobuf always passes. The default level is BACKWARD.
- `requests` keeps what was asked, so that a test can say that nothing was.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self


__all__ = ["SchemaRegistry"]

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


class _Refusal(Exception):
    """An answer other than 200: HTTP status, the registry's code, words."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Content(NamedTuple):
    """A schema without its place; equal ones share an id."""

    text: str
    schema_type: str
    references: tuple[tuple[str, str, int], ...]


class SchemaRegistry:
    """A registry on a free loopback port; a context manager. `auth`: the user and password it asks for.

    `requests` holds "METHOD path" of everything that was asked. Thread rule: any thread; one lock.
    """

    def __init__(self, *, auth: tuple[str, str] | None = None, compatibility: str = "BACKWARD") -> None:
        self.requests: list[str] = []
        self.auth = auth
        self._lock = threading.Lock()
        self._ids: dict[_Content, int] = {}
        self._schemas: dict[int, _Content] = {}
        self._subjects: dict[str, dict[int, int]] = {}  # subject -> version -> id
        self._levels: dict[str | None, str] = {None: compatibility}
        self._next_id = itertools.count(1)
        self._failures: list[int] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, status: int = 503, times: int = 1) -> None:
        """Answer the next requests with an HTTP status."""
        self._failures.extend([status] * times)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- requests -------------------------------------------------------------------------------------------------

    def _answer(self, method: str, target: str, body: Any, authorization: str | None) -> Any:
        path = urlsplit(target).path
        with self._lock:
            self.requests.append(f"{method} {target}")
            if self._failures:
                raise _Refusal(self._failures.pop(0), 50001, "told to fail")
            if self.auth is not None:
                expected = "Basic " + base64.b64encode(":".join(self.auth).encode()).decode()
                if authorization != expected:
                    raise _Refusal(401, 40101, "Unauthorized")
            for verb, pattern, serve in _ROUTES:
                found = pattern.fullmatch(path)
                if verb == method and found is not None:
                    return serve(self, body, *(unquote(part) for part in found.groups()))
        raise _Refusal(404, 404, f"HTTP 404 Not Found: {method} {path}")

    def _list_subjects(self, _body: Any) -> list[str]:
        return sorted(self._subjects)

    def _list_versions(self, _body: Any, subject: str) -> list[int]:
        return sorted(self._versions_of(subject))

    def _register(self, body: Any, subject: str) -> dict[str, Any]:
        content = self._content(body)
        versions = self._subjects.get(subject, {})
        schema_id = self._ids.get(content)
        if schema_id is None or schema_id not in versions.values():
            if versions and not self._is_compatible(subject, content, versions[max(versions)]):
                raise _Refusal(
                    409, 409, f"Schema being registered is incompatible with an earlier schema for {subject}"
                )
            if schema_id is None:
                schema_id = self._ids[content] = next(self._next_id)
                self._schemas[schema_id] = content
            self._subjects.setdefault(subject, versions)[max(versions, default=0) + 1] = schema_id
        return {"id": schema_id}

    def _look_up(self, body: Any, subject: str) -> dict[str, Any]:
        versions = self._versions_of(subject)
        schema_id = self._ids.get(self._content(body))
        for version, one in versions.items():
            if one == schema_id:
                return self._place(subject, version)
        raise _Refusal(404, 40403, "Schema not found")

    def _get_version(self, _body: Any, subject: str, version: str) -> dict[str, Any]:
        return self._place(subject, self._version(subject, version))

    def _get_schema(self, _body: Any, schema_id: str) -> dict[str, Any]:
        content = self._schemas.get(int(schema_id))
        if content is None:
            raise _Refusal(404, 40403, f"Schema {schema_id} not found")
        return _shown(content)

    def _get_places(self, _body: Any, schema_id: str) -> list[dict[str, Any]]:
        return [
            {"subject": subject, "version": version}
            for subject, versions in self._subjects.items()
            for version, one in versions.items()
            if one == int(schema_id)
        ]

    def _delete(self, _body: Any, subject: str) -> list[int]:
        versions = sorted(self._versions_of(subject))
        del self._subjects[subject]
        return versions

    def _check(self, body: Any, subject: str, version: str) -> dict[str, Any]:
        schema_id = self._versions_of(subject)[self._version(subject, version)]
        return {"is_compatible": self._is_compatible(subject, self._content(body), schema_id)}

    def _get_level(self, _body: Any, subject: str | None = None) -> dict[str, Any]:
        return {"compatibilityLevel": self._levels.get(subject, self._levels[None])}

    def _set_level(self, body: Any, subject: str | None = None) -> dict[str, Any]:
        level = body.get("compatibility")
        if level not in LEVELS:
            raise _Refusal(422, 42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        self._levels[subject] = level
        return {"compatibility": level}

    # -- schemas --------------------------------------------------------------------------------------------------

    def _versions_of(self, subject: str) -> dict[int, int]:
        versions = self._subjects.get(subject)
        if versions is None:
            raise _Refusal(404, 40401, f"Subject '{subject}' not found.")
        return versions

    def _version(self, subject: str, version: str) -> int:
        versions = self._versions_of(subject)
        number = max(versions) if version in ("latest", "-1") else int(version) if version.isdigit() else 0
        if number not in versions:
            raise _Refusal(404, 40402, f"Version {version} not found.")
        return number

    def _place(self, subject: str, version: int) -> dict[str, Any]:
        schema_id = self._subjects[subject][version]
        return {"subject": subject, "version": version, "id": schema_id, **_shown(self._schemas[schema_id])}

    def _content(self, body: Any) -> _Content:
        if not isinstance(body, Mapping) or not isinstance(body.get("schema"), str):
            raise _Refusal(422, 42201, "Invalid schema")
        schema_type = body.get("schemaType") or "AVRO"
        text = body["schema"]
        if schema_type != "PROTOBUF":
            try:
                text = json.dumps(json.loads(text), separators=(",", ":"))
            except (ValueError, RecursionError):
                raise _Refusal(422, 42201, f"Invalid schema {text!r}") from None
        references = tuple(
            (entry["name"], entry["subject"], int(entry["version"])) for entry in body.get("references") or ()
        )
        for name, subject, version in references:
            if version not in self._subjects.get(subject, {}):
                raise _Refusal(422, 42201, f"Invalid schema: no {subject} version {version} for reference {name}")
        return _Content(text, schema_type, references)

    def _is_compatible(self, subject: str, new: _Content, old_id: int) -> bool:
        old, level = self._schemas[old_id], self._levels.get(subject, self._levels[None])
        if level == "NONE":
            return True
        if new.schema_type != old.schema_type:
            return False
        if new.schema_type == "PROTOBUF":
            return True
        readable = _reads_avro if new.schema_type == "AVRO" else _reads_json
        pairs = []
        if not level.startswith("FORWARD"):
            pairs.append((new, old))
        if not level.startswith("BACKWARD"):
            pairs.append((old, new))
        return all(readable(json.loads(reader.text), json.loads(writer.text)) for reader, writer in pairs)


def _shown(content: _Content) -> dict[str, Any]:
    shown: dict[str, Any] = {"schema": content.text}
    if content.schema_type != "AVRO":
        shown["schemaType"] = content.schema_type
    if content.references:
        shown["references"] = [
            {"name": name, "subject": subject, "version": version} for name, subject, version in content.references
        ]
    return shown


_PROMOTIONS = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")}
_PROMOTIONS |= {("float", "double"), ("string", "bytes"), ("bytes", "string")}


def _reads_avro(reader: Any, writer: Any) -> bool:
    """Whether what was written with one Avro schema can be read with another."""
    if isinstance(writer, list):
        return all(_reads_avro(reader, branch) for branch in writer)
    if isinstance(reader, list):
        return any(_reads_avro(branch, writer) for branch in reader)
    one, other = (schema["type"] if isinstance(schema, dict) else schema for schema in (reader, writer))
    if isinstance(one, dict | list) or isinstance(other, dict | list):
        return _reads_avro(one, other)
    if one != other:
        return (other, one) in _PROMOTIONS
    if one == "record":
        written = {field["name"]: field["type"] for field in writer["fields"]}
        return reader["name"] == writer["name"] and all(
            _reads_avro(field["type"], written[field["name"]]) if field["name"] in written else "default" in field
            for field in reader["fields"]
        )
    if one == "enum":
        return set(writer["symbols"]) <= set(reader["symbols"]) or "default" in reader
    if one in ("array", "map"):
        key = "items" if one == "array" else "values"
        return _reads_avro(reader[key], writer[key])
    return True


def _reads_json(reader: Any, writer: Any) -> bool:
    """Whether nothing has become required that was not."""
    if not isinstance(reader, dict) or not isinstance(writer, dict):
        return bool(reader == writer)
    return set(reader.get("required", ())) <= set(writer.get("required", ()))


_R = SchemaRegistry
_ROUTES: tuple[tuple[str, re.Pattern[str], Callable[..., Any]], ...] = tuple(
    (method, re.compile(pattern), serve)
    for method, pattern, serve in (
        ("GET", "/subjects", _R._list_subjects),
        ("GET", "/subjects/([^/]+)/versions", _R._list_versions),
        ("POST", "/subjects/([^/]+)/versions", _R._register),
        ("POST", "/subjects/([^/]+)", _R._look_up),
        ("DELETE", "/subjects/([^/]+)", _R._delete),
        ("GET", "/subjects/([^/]+)/versions/([^/]+)", _R._get_version),
        ("GET", r"/schemas/ids/(\d+)", _R._get_schema),
        ("GET", r"/schemas/ids/(\d+)/versions", _R._get_places),
        ("POST", "/compatibility/subjects/([^/]+)/versions/([^/]+)", _R._check),
        ("GET", "/config", _R._get_level),
        ("GET", "/config/([^/]+)", _R._get_level),
        ("PUT", "/config", _R._set_level),
        ("PUT", "/config/([^/]+)", _R._set_level),
    )
)


def _handler_of(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection: JSON in, JSON out."""

        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            try:
                size = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(size)
                body = json.loads(text) if text else None
                status, answer = 200, registry._answer(self.command, self.path, body, self.headers.get("Authorization"))
            except _Refusal as refusal:
                status, answer = refusal.status, {"error_code": refusal.code, "message": str(refusal)}
            except ValueError as error:
                status, answer = 422, {"error_code": 42201, "message": str(error)}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: `requests` has it."""

    return Handler
