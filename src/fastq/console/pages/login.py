"""Logging in and out: by a password of the file of users, by a provider of identities, or either.

Rules: a login begins and ends in the same browser, and makes a session with a cookie of its own. Where it leads to is fixed: the console's
first page, and of a provider the addresses that it tells itself; no address comes from a request. Each try is in the audit log.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fastq.console.sessions import Sessions
from fastq.console.users import User
from fastq.console.visit import BadValue, Refused

if TYPE_CHECKING:
    from fastq.console.app import Console


async def enter(console: Console, request: Request) -> Response:
    """The form, and what it sends."""
    from fastq.console.app import COOKIE, set_cookie

    if not console.config.has_login:
        return RedirectResponse("/", 303)
    cookie = request.cookies.get(COOKIE) or Sessions.new_cookie()
    status, text = 200, ""
    if request.method == "POST":
        status, text, entered = await _try(console, request, cookie)
        if entered is not None:
            response: Response = RedirectResponse("/", 303)
            set_cookie(console, response, entered, request.headers.get("origin", ""))
            return response
    return _form(console, request, cookie, status, text)


def _form(console: Console, request: Request, cookie: str, status: int, text: str) -> Response:
    from fastq.console.app import COOKIE, set_cookie

    values = {
        "token": console.sessions.token(cookie),
        "text": text,
        "logged_out": request.query_params.get("out") == "1",
        "logout_url": None if console.provider is None else console.provider.logout_url(),
    }
    response = HTMLResponse(console.render("login.html", visit=None, **values), status)
    if COOKIE not in request.cookies:  # else one that goes over TLS alone would lose that
        set_cookie(console, response, cookie)
    return response


async def _try(console: Console, request: Request, cookie: str) -> tuple[int, str, str | None]:
    """A status and a sentence, or the cookie of the new session."""
    from fastq.console.app import LOGIN_BYTES_MAX, read_form

    console.user_of(cookie)  # a password is compared with the file of now
    if console.users is None:
        return 404, "Nobody logs in with a password here.", None
    address = _address(request)
    try:
        form = await read_form(console, request, cookie, LOGIN_BYTES_MAX)
    except (Refused, BadValue) as error:
        return 403, str(error), None
    name, password = (form.get(field, [""])[-1] for field in ("name", "password"))
    # The slot is taken before the throttle is asked, so that tries which come at once count one after the other.
    async with console.hashing:
        keys = f"name {name[:100]}", f"address {address}"
        wait_s = console.throttle.wait_s(*keys)
        users = console.users
        user = None if wait_s else await asyncio.to_thread(users.check, name, password)
        if user is not None:
            user = console.users.now(user, users)  # the file may have changed meanwhile
        if user is None and not wait_s:
            console.throttle.failed(*keys)
    outcome = "too many tries" if wait_s else "wrong name or password" if user is None else "done"
    console.audit.write(who=name[:100], address=address, what="login", cluster=None, on={}, outcome=outcome)
    if wait_s:
        return 429, f"Too many tries: wait {math.ceil(wait_s)} s.", None
    if user is None:
        return 401, "Name or password is wrong.", None
    console.throttle.succeeded(*keys)
    console.sessions.log_out(cookie)
    return 200, "", console.sessions.log_in(user)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


# -- with a provider of identities ---------------------------------------------------------------------------------------------


async def begin(console: Console, request: Request) -> Response:
    """Send the browser to the provider. A link and no form: a page's form-action, which has no host of elsewhere, holds for redirects."""
    from fastq.console.app import COOKIE, set_cookie
    from fastq.console.oidc import LoginFailed

    provider = console.provider
    if provider is None:
        return RedirectResponse("/login", 303)
    origin = provider.settings.origin
    is_here = request.headers.get("host", "").lower() == origin.partition("://")[2]
    if not is_here and "moved" not in request.query_params:
        # Where the browser comes back to, the cookie has to be there.
        return RedirectResponse(f"{origin}/login/oidc?moved=1", 303)
    cookie = request.cookies.get(COOKIE) or Sessions.new_cookie()
    try:
        url = await provider.begin(cookie)
    except LoginFailed as error:
        return _form(console, request, cookie, 502, str(error))
    response = RedirectResponse(url, 303)
    set_cookie(console, response, cookie, origin)
    return response


async def finish(console: Console, request: Request) -> Response:
    """What the provider has sent the browser back with."""
    from fastq.console.app import COOKIE, set_cookie
    from fastq.console.oidc import LoginFailed, ProviderDown

    provider = console.provider
    if provider is None:
        return RedirectResponse("/login", 303)
    cookie = request.cookies.get(COOKIE, "")
    user: User | None = None
    status, text = 200, "done"
    try:
        user = await provider.finish(request.query_params, cookie)
    except LoginFailed as error:
        status, text = 502 if isinstance(error, ProviderDown) else 403, str(error)
    who = "" if user is None else user.identity
    on = {"issuer": provider.settings.issuer}
    console.audit.write(who=who, address=_address(request), what="login", cluster=None, on=on, outcome=text)
    if user is None:
        return _form(console, request, cookie or Sessions.new_cookie(), status, text)
    console.sessions.log_out(cookie)
    response = RedirectResponse("/", 303)
    set_cookie(console, response, console.sessions.log_in(user, provider.settings.session_s), provider.settings.origin)
    return response


async def leave(console: Console, request: Request) -> Response:
    """End the session. The provider's is its own: the page that follows has a link to its end."""
    from fastq.console.app import COOKIE, LOGIN_BYTES_MAX, error_page, read_form

    cookie = request.cookies.get(COOKIE, "")
    try:
        await read_form(console, request, cookie, LOGIN_BYTES_MAX)
    except (Refused, BadValue) as error:
        return error_page(console, request, 403, str(error))
    console.sessions.log_out(cookie)
    response = RedirectResponse("/login?out=1", 303)
    response.delete_cookie(COOKIE)
    return response
