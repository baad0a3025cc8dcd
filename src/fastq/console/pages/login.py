"""Logging in and out, where the console has users."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fastq.console.sessions import Sessions
from fastq.console.visit import BadValue, Refused

if TYPE_CHECKING:
    from fastq.console.app import Console


async def enter(console: Console, request: Request) -> Response:
    """The form, and what it sends."""
    from fastq.console.app import COOKIE, set_cookie

    if console.config.users is None:
        return RedirectResponse("/", 303)
    cookie = request.cookies.get(COOKIE) or Sessions.new_cookie()
    status, text = 200, ""
    if request.method == "POST":
        status, text, entered = await _try(console, request, cookie)
        if entered is not None:
            response: Response = RedirectResponse("/", 303)
            set_cookie(console, response, entered, request.headers.get("origin", ""))
            return response
    token = console.sessions.token(cookie)
    response = HTMLResponse(console.render("login.html", visit=None, token=token, text=text), status)
    set_cookie(console, response, cookie)
    return response


async def _try(console: Console, request: Request, cookie: str) -> tuple[int, str, str | None]:
    """A status and a sentence, or the cookie of the new session."""
    from fastq.console.app import read_form

    assert console.config.users is not None
    address = request.client.host if request.client else ""
    try:
        form = await read_form(console, request, cookie)
    except (Refused, BadValue) as error:
        return 403, str(error), None
    name, password = (form.get(field, [""])[-1] for field in ("name", "password"))
    # The slot is taken before the throttle is asked, so that tries which come at once count one after the other.
    async with console.hashing:
        keys = f"name {name[:100]}", f"address {address}"
        wait_s = console.throttle.wait_s(*keys)
        user = None if wait_s else await asyncio.to_thread(console.config.users.check, name, password)
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


async def leave(console: Console, request: Request) -> Response:
    """End the session."""
    from fastq.console.app import COOKIE, error_page, read_form

    cookie = request.cookies.get(COOKIE, "")
    try:
        await read_form(console, request, cookie)
    except (Refused, BadValue) as error:
        return error_page(console, request, 403, str(error))
    console.sessions.log_out(cookie)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response
