"""The console as an ASGI application: routes, who may come in, and what becomes of errors.

Rules:
- Every answer has the headers of HEADERS; no page has a script or a style of its own.
- A request that changes something is a POST from the console's own pages: same Origin, and the token of the session in its form. One
  reader of forms (`_read_form`), bounded in bytes, fields and time.
- What a request raises becomes a page with a sentence, never a traceback; what is not foreseen is logged, and the page says so.
- What was refused or failed in a POST is in the audit log as what was done is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastq.console import shown
from fastq.console.audit import AuditFailed, AuditLog
from fastq.console.clusters import Cluster, TooManyReaders
from fastq.console.config import ConsoleConfig
from fastq.console.decoding import Registry
from fastq.console.mirrors import WatchedMirror
from fastq.console.oidc_settings import CALLBACK
from fastq.console.seen import Changed
from fastq.console.sessions import SESSION_S, Sessions, Throttle
from fastq.console.users import ANYBODY, Role, User, Users, stamp_of
from fastq.console.visit import BadValue, Refused, Visit
from fastq.errors import (
    ConfigError,
    ConnectionFailed,
    ConnectionTimeout,
    FastqError,
    GroupIdNotFound,
    KafkaError,
    SchemaRegistryTimeout,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
    WaitTimeout,
)

if TYPE_CHECKING:
    from fastq.console.oidc import Provider

logger = logging.getLogger("fastq.console")

COOKIE = "fastq_console"
FORM_BYTES_MAX = 4 << 20
LOGIN_BYTES_MAX = 4 << 10
"""Of the forms that anybody may send: a login, and a logout."""
FORM_FIELDS_MAX = 3_000
FORM_TIMEOUT_S = 20.0
HASHES_AT_ONCE = 2
SOMETHING_WRONG = "Something went wrong in the console; its log says what."

HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
STATIC_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

Handler = Callable[[Visit], Awaitable[Response]]


class Console:
    """What all requests share. Lives in one event loop, from `open` to `close` of its lifespan."""

    def __init__(self, config: ConsoleConfig) -> None:
        self.config = config.check()
        self.clusters = {cluster.name: Cluster(cluster, config.picture_s) for cluster in config.clusters}
        self.mirrors = {name: WatchedMirror(name, found) for name, found in config.mirrors.items()}
        self.sessions = Sessions()
        self.users = config.users
        self._users_stamp = None if config.users is None else config.users.stamp
        self.provider = _provider(config)
        self.throttle = Throttle()
        self.audit = AuditLog(config.audit_log)
        self.hashing = asyncio.Semaphore(HASHES_AT_ONCE)
        self._registries: dict[str, Registry] = {}
        self._templates = Environment(
            loader=PackageLoader("fastq.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters.update(shown.FILTERS)

    def user_of(self, cookie: str) -> User | None:
        """Whose session it is, as they are now: the file of users is looked at each time, and read when it has changed."""
        if not self.config.has_login:
            return ANYBODY
        self._look_at_users()
        return self.sessions.user(cookie)

    def _look_at_users(self) -> None:
        before = self.users
        if before is None:
            return
        stamp = stamp_of(before.path)
        if stamp == self._users_stamp:
            return
        self._users_stamp = stamp
        ended, outcome = 0, "done"
        try:
            now = Users.load(before.path)
        except (OSError, ConfigError) as error:
            outcome = f"the users stay as they were: {error}"
            logger.error("%s", outcome)
        else:
            self.users, self._users_stamp = now, now.stamp
            ended = self.sessions.revise(lambda user: user if user.subject else now.now(user, before))
        on = {"file": str(before.path), "users": len(self.users or before), "sessions ended": ended}
        self.audit.write(who="the console", address="", what="read users", cluster=None, on=on, outcome=outcome)

    def registry(self, cluster: Cluster) -> Registry | None:
        """The schema registry of a cluster, if it has one."""
        url = cluster.config.schema_registry
        if url is None:
            return None
        if cluster.name not in self._registries:
            self._registries[cluster.name] = Registry(url)
        return self._registries[cluster.name]

    def render(self, template: str, **values: Any) -> str:
        """A template of the package; all values are escaped, and half of a surrogate pair, which has no UTF-8, is a question mark."""
        text = self._templates.get_template(template).render(console=self, **values)
        return text.encode(errors="replace").decode()

    async def close(self) -> None:
        """Close the clients and the audit log."""
        for cluster in self.clusters.values():
            await cluster.close()
        if self.provider is not None:
            await self.provider.close()
        await asyncio.gather(*(mirror.close() for mirror in self.mirrors.values()))
        self.audit.close()


def _provider(config: ConsoleConfig) -> Provider | None:
    if config.oidc is None:
        return None
    try:
        from fastq.console.oidc import Provider
    except ImportError as error:
        raise ConfigError(_without_oidc(error)) from error
    return Provider(config.oidc)


def _without_oidc(error: ImportError) -> str:
    """What is said where the packages of the extra are not there. The one file of `make binary`, whose sys.executable is its own, has none
    of them (cryptography alone would be a fifth of it) and takes none from pip."""
    if os.path.basename(sys.executable) == "fastq-python":
        return (
            f"[oidc] needs packages that this one file does not hold ({error}): run the console from an installed fastq "
            "(with pip install joserfc httpx), or without [oidc] and with --users FILE"
        )
    return f"[oidc] needs more packages: pip install joserfc httpx ({error})"


def create_app(config: ConsoleConfig) -> Starlette:
    """The application of a configuration; raises ConfigError for what must not be served."""
    from fastq.console.pages import ROUTES, login

    console = Console(config)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await console.close()

    routes = [
        Route(path, _endpoint(console, handler, role, method), methods=[method])
        for method, path, role, handler in ROUTES
    ]
    files = _static_files()

    async def static(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("there is no such file", 404)
        kind, data = found
        return Response(data, media_type=kind, headers={"cache-control": "max-age=300"})

    async def enter(request: Request) -> Response:
        return await login.enter(console, request)

    async def begin(request: Request) -> Response:
        return await login.begin(console, request)

    async def finish(request: Request) -> Response:
        return await login.finish(console, request)

    async def leave(request: Request) -> Response:
        return await login.leave(console, request)

    async def missing(request: Request, _error: Exception) -> Response:
        return error_page(console, request, 404, "There is no such page.")

    async def wrong_method(request: Request, _error: Exception) -> Response:
        return error_page(console, request, 405, "This page does not take that kind of request.")

    app = Starlette(
        routes=[
            *routes,
            Route("/static/{name}", static),
            Route("/login", enter, methods=["GET", "POST"]),
            Route("/login/oidc", begin, methods=["GET"]),
            Route(CALLBACK, finish, methods=["GET"]),
            Route("/logout", leave, methods=["POST"]),
        ],
        exception_handlers={404: missing, 405: wrong_method},
        lifespan=lifespan,
    )
    app.state.console = console
    app.add_middleware(_Guard, console=console)
    return app


def _static_files() -> dict[str, tuple[str, bytes]]:
    """The few files of the package, read once: no path of a request reaches the disk."""
    found = {}
    for item in resources.files("fastq.console").joinpath("static").iterdir():
        kind = STATIC_TYPES.get("." + item.name.rpartition(".")[2])
        if kind is not None:
            found[item.name] = kind, item.read_bytes()
    return found


class _Guard:
    """Outermost: the headers of every answer, the names that the console may be called by, and a page where all else has failed."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self.app = app
        self.console = console
        self.allowed = console.config.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        host = _host_of(Request(scope).headers.get("host", ""))
        if self.allowed is not None and host not in self.allowed:
            answer = PlainTextResponse("This console is not known by that name; see --name of fastq console.", 421)
            await answer(scope, receive, with_headers)
            return
        try:
            await self.app(scope, receive, with_headers)
        except Exception:
            if begun:
                raise  # a part of an answer: uvicorn logs it and breaks the connection
            logger.exception("%s %s", scope["method"], scope["path"])
            page = error_page(self.console, Request(scope), 500, SOMETHING_WRONG)
            await page(scope, receive, with_headers)


def _place_of(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _endpoint(console: Console, handler: Handler, role: Role, method: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        user = console.user_of(cookie)
        if user is None:
            if method == "GET" and "text/event-stream" not in request.headers.get("accept", ""):
                return Response(status_code=303, headers={"location": "/login"})
            return error_page(console, request, 401, "The session is over: log in again.")
        fresh = "" if cookie else Sessions.new_cookie()
        visit = Visit(console, request, user, cookie or fresh, {})
        response = await _answer(visit, handler, role, method)
        if fresh:
            set_cookie(console, response, fresh)
        return response

    return endpoint


async def _answer(visit: Visit, handler: Handler, role: Role, method: str) -> Response:
    console, request = visit.console, visit.request
    try:
        if request.path_params.get("cluster", next(iter(console.clusters))) not in console.clusters:
            return error_page(console, request, 404, "There is no such cluster.")
        visit.check_role(role)
        if method == "POST":
            visit.form = await read_form(console, request, visit.cookie)
            visit.check_session()  # a form may take its time, and who sends it is somebody else by then
            console.audit.check()
        response = await handler(visit)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        status, text = _told(error)
        if status == 500:
            logger.exception("%s %s", method, request.url.path)
        if method == "POST":
            visit.audit(request.url.path.rpartition("/")[2], text, path=request.url.path)
        return error_page(console, request, status, text, visit, error)
    if method == "POST" and not visit.audited:
        visit.audit(request.url.path.rpartition("/")[2], path=request.url.path)
    return response


def _told(error: Exception) -> tuple[int, str]:
    """The status and the sentence of an error."""
    if isinstance(error, BadValue):
        return 400, str(error)
    if isinstance(error, Refused):
        return 403, str(error)
    if isinstance(error, TooManyReaders | AuditFailed):
        return 503, str(error)
    if isinstance(error, UnknownTopicOrPartition | GroupIdNotFound | TransactionalIdNotFound):
        return 404, str(error)
    if isinstance(error, ConnectionFailed | ConnectionTimeout) and not isinstance(error, KafkaError):
        return 502, f"The cluster cannot be reached: {error}"
    if isinstance(error, WaitTimeout | SchemaRegistryTimeout):
        return 504, str(error)
    if isinstance(error, FastqError | Changed):
        return 409, str(error)
    if isinstance(error, ValueError | TypeError) and _from_arguments(error):
        return 400, str(error)
    return 500, SOMETHING_WRONG


def _from_arguments(error: Exception) -> bool:
    """Whether a client refused what it was given, before it asked a broker: ours to tell, where it is not a mistake of the console."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "fastq.admin" in trace.tb_frame.f_globals.get("__name__", "")


def error_page(
    console: Console,
    request: Request,
    status: int,
    text: str,
    visit: Visit | None = None,
    error: Exception | None = None,
) -> Response:
    """A sentence, and where a form was refused the page to begin anew from; to a program that wants no page, as plain text."""
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(text, status)
    changed = isinstance(error, Changed)
    again = (error.again if isinstance(error, Changed) else "") or _page_before(request)
    page = console.render("error.html", visit=visit, Role=Role, status=status, text=text, changed=changed, again=again)
    return HTMLResponse(page, status)


def _page_before(request: Request) -> str:
    """The page of this console that a form was on, as browsers tell it; empty for what shows nothing when it is opened by itself."""
    if request.method != "POST":
        return ""
    try:
        before = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return ""
    asked = {**request.scope, "method": "GET", "path": unquote(before.path)}
    is_page = any(route.matches(asked)[0] is Match.FULL for route in request.app.routes)
    if before.netloc != request.headers.get("host") or not before.path.startswith("/c/") or not is_page:
        return ""
    return f"{before.path}?{before.query}" if before.query else before.path


def set_cookie(console: Console, response: Response, cookie: str, origin: str = "") -> None:
    """A session's cookie: no script reads it, no form of another site sends it, and what was logged in over TLS, the console's own or a
    proxy's before it (`origin`), does not go without."""
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="lax",
        secure=console.config.certificate is not None or origin.startswith("https://"),
    )


async def read_form(
    console: Console, request: Request, cookie: str, bytes_max: int = FORM_BYTES_MAX
) -> Mapping[str, Sequence[str]]:
    """The fields of a POST that came from the console's own pages, of `bytes_max` at most; raises Refused, BadValue."""
    origin = request.headers.get("origin")
    if origin is not None and _place_of(origin) != request.headers.get("host"):
        raise Refused("This form was sent from another site.")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused("This form was sent from another site.")
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise BadValue("a form is application/x-www-form-urlencoded")
    body = bytearray()
    try:
        await asyncio.wait_for(_read(request, body, bytes_max), FORM_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise BadValue(f"the form took longer than {FORM_TIMEOUT_S:.0f} s to arrive") from None
    form: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError:
        raise BadValue(f"this is no form of UTF-8 with up to {FORM_FIELDS_MAX:,} fields") from None
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    token = form.pop("token", [""])[-1]
    if not cookie or not console.sessions.is_token(cookie, token):
        raise Refused("The form is not of this session: open the page again, then send it.")
    return form


async def _read(request: Request, body: bytearray, bytes_max: int) -> None:
    async for chunk in request.stream():
        if len(body) + len(chunk) > bytes_max:
            body.clear()
            raise BadValue(f"this form has up to {bytes_max >> 10:,} KiB")
        body += chunk
