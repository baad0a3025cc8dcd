"""A client of Confluent-compatible schema registries: schemas by id, ids by subject, over HTTP. Standard library only.

Rules
- What cannot change is asked for once: the schema of an id, the id of a schema in a subject. After the first value of each
  schema nothing is asked any more. Of each kind CACHED_MAX are kept, the newest.
- Calls block, so none is made in a thread that runs an event loop: LoadingWouldBlock says so, and how to go on. The asyncio
  clients of this package handle it by themselves.
- A redirect is not followed: where requests and logins go is said by whoever made the client, and by no answer.
- Of several servers the next one is asked when one cannot be reached or fails (HTTP 5xx). Other answers are final.
- An answer is read into what it should be, whole in RESPONSE_BYTES_MAX and in `timeout_s` behind its head, or it is an error, whose
  words are bounded too. Passwords and tokens are in no message.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fastq.arguments import int_of, number_of, text_of, without_logins
from fastq.errors import LoadingWouldBlock, SchemaRegistryError, SchemaRegistryTimeout, WaitTimeout

T = TypeVar("T")

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
SAID_MAX = 2_000
"""Characters of a registry's own words in an error."""
CACHED_MAX = 1_000
RETRY_PAUSE_S = 0.1
TIMEOUT_S = 0.001, 86_400.0
INT32_MAX = 2**31 - 1


class SchemaReference(NamedTuple):
    """Another schema that one builds on: the name it is known by there, and where it is registered."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as the registry keeps it: its text, AVRO, PROTOBUF or JSON, and what it builds on."""

    text: str
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As requests carry it; AVRO goes without saying."""
        body: dict[str, Any] = {"schema": self.text}
        if self.schema_type != "AVRO":
            body["schemaType"] = self.schema_type
        if self.references:
            body["references"] = [reference._asdict() for reference in self.references]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Schema:
        """From an answer. Raises KeyError, TypeError, ValueError or AttributeError of what is none."""
        references = tuple(
            SchemaReference(_text(entry["name"]), _text(entry["subject"]), _number(entry["version"]))
            for entry in body.get("references") or ()
        )
        return cls(_text(body["schema"]), _text(body.get("schemaType") or "AVRO"), references)


class RegisteredSchema(NamedTuple):
    """A schema and where it is: its id, subject and version there."""

    schema_id: int
    subject: str
    version: int
    schema: Schema


class RedirectsNowhere(urllib.request.HTTPRedirectHandler):
    """Makes an error of an answer that sends elsewhere."""

    def redirect_request(self, *_answer: Any) -> None:
        return None


class SchemaRegistryClient:
    """One registry, or several servers of it.

    url: http(s)://host:port, or several; user and password may be part of it. basic_auth: (user, password).
    bearer_token: for registries behind OAuth. headers: further ones. timeout_s: of one request. retries: further rounds
    over the servers. latest_ttl_s: how long the latest version of a subject is believed to be the latest.
    Thread rule: any thread; one asks, others that want the same wait for its answer.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        basic_auth: tuple[str, str] | None = None,
        bearer_token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        retries: int = 2,
        latest_ttl_s: float = 300.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        servers = _servers(url)
        self.urls = [server for server, _ in servers]
        self._logins = [_login(basic_auth) or login for _, login in servers]
        self._bearer_token = None if bearer_token is None else _header("bearer_token", bearer_token)
        self._headers = _headers(headers or {})
        self._timeout_s = number_of(timeout_s, "timeout_s", *TIMEOUT_S)
        self._retries = int_of(retries, "retries", 0, 100)
        self._latest_ttl_s = number_of(latest_ttl_s, "latest_ttl_s", 0)
        if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
            raise TypeError(f"ssl_context is an ssl.SSLContext, got {ssl_context!r}")
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl_context), RedirectsNowhere())
        self._lock = threading.RLock()
        self._schemas: dict[tuple[int, str | None], Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}
        self._registered: dict[tuple[str, Schema], RegisteredSchema] = {}
        self._versions: dict[tuple[str, int, str | None], RegisteredSchema] = {}
        self._latest: dict[str, tuple[float, RegisteredSchema]] = {}

    def __repr__(self) -> str:
        return f"<SchemaRegistryClient {','.join(self.urls)}>"

    # -- cached ---------------------------------------------------------------------------------------------------

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """The id of a schema, which becomes the subject's newest version unless it is one already.

        Raises SchemaRegistryError: 409 when it is not compatible with the versions before, 422 when it is not valid.
        """
        key = (subject, schema)

        def ask() -> int:
            query = {"normalize": "true"} if normalize else {}
            path = _path("subjects", subject, "versions")
            return self._request(
                "POST", path, _body(schema), lambda answer: _number(answer["id"]), query, subject=subject
            )

        return self._cached(self._ids, key, ask)

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Where a schema is in a subject. Raises SchemaRegistryError, with status 404 when it is not there."""

        def ask() -> RegisteredSchema:
            query = {"normalize": "true"} if normalize else {}
            path = _path("subjects", subject)
            return self._request("POST", path, _body(schema), _registered, query, subject=subject)

        return self._cached(self._registered, (subject, schema), ask)

    def schema(self, schema_id: int, *, format: str | None = None) -> Schema:
        """The schema of an id. Raises SchemaRegistryError, with status 404 when there is none.

        format: "serialized" for Protobuf gives the file's descriptor in base64 rather than its text.
        """

        def ask() -> Schema:
            query = {"format": format} if format else {}
            path = _path("schemas", "ids", str(int_of(schema_id, "the id of a schema", 0, INT32_MAX)))
            return self._request("GET", path, None, Schema.from_json, query, schema_id=schema_id)

        return self._cached(self._schemas, (schema_id, format), ask)

    def version(self, subject: str, version: int, *, format: str | None = None) -> RegisteredSchema:
        """One version of a subject. That which is the newest is what `latest` is for."""

        def ask() -> RegisteredSchema:
            query = {"format": format} if format else {}
            path = _path("subjects", subject, "versions", _version(version))
            return self._request("GET", path, None, _registered, query, subject=subject)

        return self._cached(self._versions, (subject, version, format), ask)

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject, as of at most `latest_ttl_s` ago."""
        known = self._latest.get(subject)
        if known is not None and time.monotonic() - known[0] < self._latest_ttl_s:
            return known[1]

        def ask() -> tuple[float, RegisteredSchema]:
            path = _path("subjects", subject, "versions", "latest")
            return time.monotonic(), self._request("GET", path, None, _registered, subject=subject)

        self._latest.pop(subject, None)
        return self._cached(self._latest, subject, ask)[1]

    # -- not cached -----------------------------------------------------------------------------------------------

    def subjects(self) -> list[str]:
        """The names of all subjects."""
        return self._request("GET", "/subjects", None, _texts)

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject."""
        return self._request("GET", _path("subjects", subject, "versions"), None, _numbers, subject=subject)

    def compatible(self, subject: str, schema: Schema, version: int | str = "latest") -> bool:
        """Whether a schema may follow a version of a subject, by the subject's compatibility level."""
        path = _path(
            "compatibility", "subjects", subject, "versions", version if version == "latest" else _version(version)
        )
        return self._request(
            "POST", path, _body(schema), lambda answer: _truth(answer["is_compatible"]), subject=subject
        )

    def compatibility(self, subject: str | None = None) -> str:
        """The compatibility level of a subject, or of all that have none of their own."""
        query = {"defaultToGlobal": "true"} if subject is not None else {}
        path = "/config" if subject is None else _path("config", subject)
        return self._request(
            "GET", path, None, lambda answer: _text(answer["compatibilityLevel"]), query, subject=subject
        )

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """BACKWARD, FORWARD, FULL, each also with _TRANSITIVE, or NONE."""
        path = "/config" if subject is None else _path("config", subject)
        self._request("PUT", path, {"compatibility": text_of(level, "a level")}, lambda answer: None, subject=subject)

    def delete_subject(self, subject: str) -> list[int]:
        """Delete all versions of a subject; answers which."""
        path = _path("subjects", subject)
        try:
            return self._request("DELETE", path, None, _numbers, subject=subject)
        finally:  # and not before: what others register meanwhile goes with it, and an answer that is lost says nothing
            self._forget(subject)

    def _forget(self, subject: str) -> None:
        with self._lock:
            caches: list[dict[Any, Any]] = [self._ids, self._registered, self._versions]
            for cache in caches:
                for key in [key for key in cache if key[0] == subject]:
                    del cache[key]
            self._latest.pop(subject, None)

    # -- own ------------------------------------------------------------------------------------------------------

    def _cached(self, cache: dict[Any, T], key: Any, ask: Callable[[], T]) -> T:
        value = cache.get(key)
        if value is not None:
            return value
        _refuse_in_event_loop(self.urls[0], partial(self._cached, cache, key, ask))
        with self._lock:
            value = cache.get(key)
            if value is None:
                value = ask()
                while len(cache) >= CACHED_MAX:
                    del cache[next(iter(cache))]
                cache[key] = value
            return value

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        read: Callable[[Any], T],
        query: Mapping[str, str] | None = None,
        **where: Any,
    ) -> T:
        """What `read` makes of the answer's JSON; whatever else than JSON of a registry comes is SchemaRegistryError."""
        _refuse_in_event_loop(self.urls[0], partial(self._request, method, path, body, read, query, **where))
        suffix = path + ("?" + urllib.parse.urlencode(query) if query else "")
        last: SchemaRegistryError | None = None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1))
            for index in range(len(self.urls)):
                try:
                    return self._ask(index, method, suffix, body, read, where)
                except SchemaRegistryError as error:
                    if not error.retriable:
                        raise
                    last = error
        assert last is not None
        raise last

    def _ask(
        self, index: int, method: str, suffix: str, body: Any, read: Callable[[Any], T], where: Mapping[str, Any]
    ) -> T:
        url = self.urls[index] + suffix
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE, **self._headers, **self._authorization(index)}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer = json.loads(_whole(response, self._timeout_s))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(url, method, error, self._timeout_s, where) from None
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:  # URLError is an OSError
            cause = getattr(error, "reason", error)
            if isinstance(cause, TimeoutError):
                raise _unusable(SchemaRegistryTimeout, None, url, error, where) from error
            if isinstance(error, OSError):
                raise _unusable(
                    SchemaRegistryError, "the schema registry cannot be reached", url, error, where
                ) from error
            what = (
                "the answer is not HTTP" if isinstance(error, http.client.HTTPException) else "the answer is not JSON"
            )
            raise _unusable(SchemaRegistryError, what, url, error, where) from error
        try:
            return read(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = "the answer is not what a schema registry says"
            raise _unusable(SchemaRegistryError, what, url, error, where) from error

    def _authorization(self, index: int) -> dict[str, str]:
        login = self._logins[index]
        if self._bearer_token is not None:
            return {"Authorization": f"Bearer {self._bearer_token}"}
        if login is not None:
            return {"Authorization": "Basic " + base64.b64encode(":".join(login).encode()).decode()}
        return {}


def _unusable(
    kind: type[SchemaRegistryError], what: str | None, url: str, error: Exception, where: Mapping[str, Any]
) -> SchemaRegistryError:
    """The error of no answer, or of one that is none."""
    cause = getattr(error, "reason", error)
    failed = kind(what, url=url, cause=cause, hint="Check the url, and that a registry runs there", **where)
    failed.retriable = isinstance(error, OSError)
    return failed


def _refused(
    url: str, method: str, error: urllib.error.HTTPError, timeout_s: float, where: Mapping[str, Any]
) -> SchemaRegistryError:
    said, code = "", None
    try:
        body = json.loads(_whole(error, timeout_s))
        said, code = _text(body.get("message", ""))[:SAID_MAX], body.get("error_code")
    except (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError, AttributeError):
        pass
    moved = "It sends elsewhere, which is not followed: give the url that it has now"
    hints = {
        **dict.fromkeys((301, 302, 303, 307, 308), moved),
        401: "Check basic_auth or bearer_token",
        403: "The login may not do this",
        404: "Is it another registry, or was it deleted? Was the schema registered?",
        409: "Change the schema so that it is compatible, or the subject's compatibility level",
    }
    failed = SchemaRegistryError(
        f"the schema registry refused {method} with HTTP {error.code}" + (f": {said}" if said else ""),
        url=url,
        status=error.code,
        error_code=code,
        hint=hints.get(error.code),
        **where,
    )
    failed.retriable = error.code >= 500
    return failed


def _registered(body: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(
        _number(body["id"]), _text(body["subject"]), _number(body["version"]), Schema.from_json(body)
    )


def _whole(response: Any, timeout_s: float) -> bytes:
    """The body of an answer; raises WaitTimeout for one that trickles, as the socket's time-out is of each of its reads alone."""
    until_s = time.monotonic() + timeout_s
    body = bytearray()
    while part := response.read1(1 << 20):
        body += part
        if len(body) > RESPONSE_BYTES_MAX:
            raise ValueError(f"it has more than {RESPONSE_BYTES_MAX:,} bytes")
        if time.monotonic() > until_s:
            raise WaitTimeout(f"it took longer than {timeout_s:.0f} s")
    return bytes(body)


def _text(value: Any) -> str:
    """A text that can be written as UTF-8: in JSON there are halves of surrogate pairs. No value is in the error, however long it is."""
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise TypeError(f"a number of 31 bits is expected, not {type(value).__name__}")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"true or false is expected, not {type(value).__name__}")
    return value


def _texts(body: Any) -> list[str]:
    return [_text(item) for item in _list(body)]


def _numbers(body: Any) -> list[int]:
    return [_number(item) for item in _list(body)]


def _list(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise TypeError(f"a list is expected, not {type(body).__name__}")
    return body


def _path(*parts: str) -> str:
    return "".join("/" + urllib.parse.quote(text_of(part, "a subject"), safe="") for part in parts)


def _version(given: Any) -> str:
    return str(int_of(given, "a version of a subject", 1, INT32_MAX))


def _body(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Schema):
        raise TypeError(f"a Schema is needed, as in Schema('{{...}}', \"AVRO\"), got {schema!r}")
    return schema.to_json()


def _servers(url: Any) -> list[tuple[str, tuple[str, str] | None]]:
    """The urls that were given, without the logins in them, and those. No login is in what they raise."""
    given = url.split(",") if isinstance(url, str) else list(url) if isinstance(url, (list, tuple)) else [url]
    if not all(isinstance(one, str) for one in given):
        raise TypeError(
            f"url is a str, http://host:port or https://host:port, or a list of such, got {without_logins(url)}"
        )
    urls = [one.strip().rstrip("/") for one in given if one.strip()]
    try:
        if urls and all(re.match("(?i)https?://.", one) and _has_host(one) for one in urls):
            return [_without_login(one) for one in urls]
    except ValueError:  # of brackets, or a port
        pass
    raise ValueError(f"url is http://host:port or https://host:port, or several, got {without_logins(url)}")


def _has_host(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return bool(parts.hostname) and parts.port != 0  # ValueError of what is no port


def _login(given: Any) -> tuple[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(isinstance(one, str) for one in given):
        raise TypeError(f"basic_auth is a pair of str, (user, password), got {type(given).__name__}")
    user, password = given
    return user, password


def _headers(given: Any) -> dict[str, str]:
    if not hasattr(given, "items"):
        raise TypeError(f'headers is a mapping, as in {{"X-Tenant": "a"}}, got {type(given).__name__}')
    return {
        text_of(name, "the name of a header"): _header(f"the header {name}", value) for name, value in given.items()
    }


def _header(what: str, given: Any) -> str:
    """A value of a header, which may be secret and is in no message."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a str, got {type(given).__name__}")
    if not given.isprintable() or any(letter > "\xff" for letter in given):
        raise ValueError(f"{what} is printable ISO 8859-1: it has something else, such as the end of a line")
    return given


def _without_login(url: str) -> tuple[str, tuple[str, str] | None]:
    """A url without the user and password in it, and those."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is None:
        return url, None
    login = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), login


def check_registry(registry: Any) -> None:
    """Raises TypeError for what asks no registry, such as the url of one."""
    if not hasattr(registry, "schema") or not hasattr(registry, "register"):
        raise TypeError(
            f"registry is a SchemaRegistryClient, as in SchemaRegistryClient('http://registry:8081'), got {type(registry).__name__}"
        )


def _refuse_in_event_loop(url: str, load: Callable[[], object]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    error = LoadingWouldBlock(
        f"a request to the schema registry {url} would block the event loop",
        hint="Use AsyncProducer or AsyncConsumer, which load in a thread; or run what uses a blocking client, as in a notebook, in one: "
        "await asyncio.to_thread(function); or warm up there first: await asyncio.to_thread(serializer.warm_up, topic). Without a client: "
        "await serialize_async or deserialize_async",
    )
    error.load = load
    raise error
