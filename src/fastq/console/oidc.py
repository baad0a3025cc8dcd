"""Logging in with OpenID Connect: the authorization code flow with PKCE (RFC 7636), as a client that trusts what it has verified.

Rules
- Addresses come from the settings and from the provider's own configuration (OpenID Connect Discovery), whose issuer must be the one of the
  settings; nothing of an address comes from a browser. No redirect of the provider's endpoints is followed.
- A login is begun here: its state, nonce and code verifier are kept here, for the browser that has begun it, for ATTEMPT_S. What comes
  back is taken once, whatever becomes of it.
- An identity is an ID token that a key of the provider has signed with an asymmetric algorithm (never `none`, never a shared secret), from
  the issuer, for this client, with the nonce, and within its times. An unknown key has the keys asked for anew: they are changed at times.
- Whatever fails is a sentence without secrets, codes or tokens: `LoginFailed`, and `ProviderDown` where the provider is not there.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry

from fastq.console.oidc_settings import EVERYBODY, OidcSettings, is_secure
from fastq.console.paths import find
from fastq.console.users import User

logger = logging.getLogger("fastq.console")

ATTEMPT_S, ATTEMPTS_MAX = 600.0, 10_000
CONFIGURATION_S, KEYS_S, DOWN_S = 3600.0, 600.0, 2.0
ANSWER_BYTES_MAX = 1 << 20
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures by a key that only the provider has."""
KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
NAME_MAX, CODE_MAX = 100, 4096
TOLD_ERROR = re.compile(r"[a-z_]{1,60}")


class LoginFailed(Exception):
    """Nobody is logged in; the text says why."""


class ProviderDown(LoginFailed):
    """The provider does not answer, or not as one does."""


class _Attempt(NamedTuple):
    browser: bytes
    nonce: str
    verifier: str
    ends: float


class _Configuration(NamedTuple):
    authorization: str
    token: str
    keys: str
    logout: str | None
    secret_in_form: bool
    tells_issuer: bool


class Provider:
    """A provider with what is known of it. One event loop."""

    def __init__(
        self,
        settings: OidcSettings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._clock, self._monotonic = clock, monotonic
        self._attempts: OrderedDict[bytes, _Attempt] = OrderedDict()
        self._http: httpx.AsyncClient | None = None
        self._configuration: _Configuration | None = None
        self._configured = 0.0
        self._keys: list[Any] = []
        self._keyed: float | None = None
        self._asking = asyncio.Lock()
        self._down: tuple[ProviderDown, float] | None = None

    # -- the two halves of a login

    async def begin(self, cookie: str) -> str:
        """Where the browser of a cookie is sent to; raises ProviderDown."""
        configuration = await self._configured_now()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        now = self._monotonic()
        self._attempts[_hashed(state)] = _Attempt(_hashed(cookie), nonce, verifier, now + ATTEMPT_S)
        while len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)
        challenge = base64.urlsafe_b64encode(_hashed(verifier)).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_uri,
            "scope": self.settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return configuration.authorization + ("&" if "?" in configuration.authorization else "?") + urlencode(asked)

    async def finish(self, values: Mapping[str, str], cookie: str) -> User:
        """Who has come back, by the values of the address; raises LoginFailed."""
        attempt = self._attempts.pop(_hashed(values.get("state", "")), None)
        if attempt is None or attempt.ends <= self._monotonic():
            raise LoginFailed("This login was not begun here, or too long ago, or is over already: begin again.")
        if not cookie or not hmac.compare_digest(attempt.browser, _hashed(cookie)):
            raise LoginFailed("This login was begun in another browser: begin again.")
        configuration = await self._configured_now()
        if values.get("iss", self.settings.issuer if not configuration.tells_issuer else "") != self.settings.issuer:
            raise LoginFailed("The answer is of another provider (RFC 9207): begin again.")
        if "error" in values:
            told = values["error"] if TOLD_ERROR.fullmatch(values["error"]) else "an error of no known form"
            raise LoginFailed(f"The provider did not log you in: {told}.")
        code = values.get("code", "")
        if not 0 < len(code) <= CODE_MAX:
            raise LoginFailed("The provider's answer has no code in it: begin again.")
        token = await self._redeem(configuration, code, attempt.verifier)
        return self._user(await self._verified(token, attempt.nonce))

    def logout_url(self) -> str | None:
        """The provider's own log-out, where it has one and is known."""
        configuration = self._configuration
        if configuration is None or configuration.logout is None:
            return None
        address = configuration.logout
        return address + ("&" if "?" in address else "?") + urlencode({"client_id": self.settings.client_id})

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    # -- what is asked of the provider

    async def _redeem(self, configuration: _Configuration, code: str, verifier: str) -> str:
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_uri,
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        headers = {}
        if settings.secret is not None and configuration.secret_in_form:
            form["client_secret"] = settings.secret
        elif settings.secret is not None:  # RFC 6749, 2.3.1: each is encoded as in a form, and then the two
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.secret)}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        answer = await self._ask("POST", configuration.token, data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderDown("The provider's answer has no ID token: has the client the scope openid?")
        return token

    async def _configured_now(self) -> _Configuration:
        async with self._asking:
            known, now = self._configuration, self._monotonic()
            if known is not None and now - self._configured < CONFIGURATION_S:
                return known
            if known is None and self._down is not None and now < self._down[1]:
                raise self._down[0]  # whoever has waited for another's time-out does not wait for one of their own
            try:
                found = self._read(await self._ask("GET", self._discovery))
            except ProviderDown as error:
                self._down = error, self._monotonic() + DOWN_S
                if known is None:
                    raise
                logger.warning("the provider's configuration stays as it was: %s", error)
                found = known
            self._configuration, self._configured = found, now
            return found

    @property
    def _discovery(self) -> str:
        return self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"

    def _read(self, found: Mapping[str, Any]) -> _Configuration:
        issuer = found.get("issuer")
        if issuer != self.settings.issuer:
            raise ProviderDown(
                f"{self._discovery} is not of the issuer {self.settings.issuer} but of {str(issuer)[:300]}: [oidc] is to have it as "
                "it is written there, to the last slash."
            )
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        for name in needed:
            if not is_secure(found.get(name)):
                raise ProviderDown(f"{self._discovery}: {name} is no https address.")
        authorization, token, keys = (str(found[name]) for name in needed)
        logout = found.get("end_session_endpoint")
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return _Configuration(
            authorization,
            token,
            keys,
            str(logout) if is_secure(logout) else None,
            isinstance(methods, list) and "client_secret_basic" not in methods,
            found.get("authorization_response_iss_parameter_supported") is True,
        )

    async def _keys_now(self, *, anew: bool) -> list[Any]:
        async with self._asking:
            known = self._configuration
            assert known is not None
            now = self._monotonic()
            if anew or self._keyed is None or now - self._keyed >= KEYS_S:
                self._keys, self._keyed = _keys_of(await self._ask("GET", known.keys)), now
            return self._keys

    async def _ask(self, method: str, url: str, **how: Any) -> dict[str, Any]:
        """A JSON object that an endpoint answers; raises ProviderDown, and LoginFailed for what it refuses."""
        host = urlsplit(url).netloc
        try:
            status, body = await asyncio.wait_for(self._fetch(method, url, **how), self.settings.timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            raise ProviderDown(f"The provider {host} does not answer within {self.settings.timeout_s} s.") from None
        except (httpx.HTTPError, OSError) as error:
            raise ProviderDown(
                f"The provider {host} cannot be reached: {str(error) or type(error).__name__}."
            ) from None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if status in (400, 401, 403) and isinstance(found, dict) and TOLD_ERROR.fullmatch(str(found.get("error", ""))):
            if found["error"] == "invalid_client":
                logger.error("the provider %s does not take this client: see client_id and its secret", host)
            raise LoginFailed(f"The provider refused the login: {found['error']}.")
        if status != 200 or not isinstance(found, dict):
            raise ProviderDown(f"The provider {host} answered {status}, and not what was asked for.")
        return found

    async def _fetch(self, method: str, url: str, **how: Any) -> tuple[int, bytes]:
        if self._http is None:
            trusted = ssl.create_default_context(cafile=self.settings.ca_file)
            self._http = httpx.AsyncClient(verify=trusted, timeout=self.settings.timeout_s, follow_redirects=False)
        headers = {"accept": "application/json", **how.pop("headers", {})}
        async with self._http.stream(method, url, headers=headers, **how) as answer:
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise httpx.HTTPError(f"its answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
            return answer.status_code, bytes(body)

    # -- what an identity is

    async def _verified(self, token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token; raises LoginFailed."""
        kid = _kid_of(token)
        keys = await self._keys_now(anew=False)
        if not _fitting(keys, kid):
            keys = await self._keys_now(anew=True)
        claims = _signed(token, _fitting(keys, kid))
        if claims is None and kid is None:  # without a name, a key that was changed is seen by this alone
            claims = _signed(token, await self._keys_now(anew=True))
        if claims is None:
            raise LoginFailed("The ID token is not signed by a key of the provider.")
        fault = self._fault(claims, nonce)
        if fault is not None:
            raise LoginFailed(f"The ID token is not for this login: {fault}.")
        return claims

    def _fault(self, claims: Mapping[str, Any], nonce: str) -> str | None:
        """OpenID Connect Core 3.1.3.7."""
        now, skew_s, client = self._clock(), self.settings.skew_s, self.settings.client_id
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != self.settings.issuer:
            return "its issuer is another"
        if client not in audiences:
            return "it is for another client (aud)"
        if claims.get("azp", client if len(audiences) == 1 else None) != client:
            return "it was given to another client (azp)"
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode("utf-8", "replace"), nonce.encode()):
            return "its nonce is another"
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            return "it names no subject"
        expires, issued, begins = (_time(claims.get(name)) for name in ("exp", "iat", "nbf"))
        if expires is None or issued is None or (begins is None and "nbf" in claims):
            return "its times (exp, iat, nbf) are none"
        if expires + skew_s <= now:
            return "it has expired; are the clocks right?"
        if max(issued, begins or 0.0) - skew_s > now:
            return "it is of a time to come; are the clocks right?"
        return None

    def _user(self, claims: Mapping[str, Any]) -> User:
        settings = self.settings
        name = next(find(settings.name_claim, claims), None)
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_MAX:
            shown = ".".join(map(str, settings.name_claim))
            raise LoginFailed(
                f"The ID token has no name in {shown}: whoever runs the console sets name_claim, or the scopes."
            )
        values = set[str]()
        for found in find(settings.roles_claim, claims):
            values.update(one for one in (found if isinstance(found, list) else [found]) if isinstance(one, str))
        for rule in settings.rules:
            if rule.value == EVERYBODY or rule.value in values:
                return User(name, rule.role, rule.topics, subject=claims["sub"])
        raise LoginFailed(
            f"{name} has no role in this console: whoever runs it gives roles by groups, and none of yours has one."
        )


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _kid_of(token: str) -> str | None:
    """The key's name in the head of a token, which nothing has verified yet: it only chooses among the provider's keys."""
    head = token.split(".", 1)[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
        kid = found.get("kid")
    except (ValueError, AttributeError, RecursionError):
        raise LoginFailed("The ID token is not signed by a key of the provider.") from None
    return kid if isinstance(kid, str) else None


def _keys_of(found: Mapping[str, Any]) -> list[Any]:
    """Public keys for signatures. What is no such key is left out: shared secrets above all."""
    keys = []
    listed = found.get("keys")
    for data in listed if isinstance(listed, list) else ():
        if not isinstance(data, dict) or data.get("kty") not in KEY_TYPES or data.get("use", "sig") != "sig":
            continue
        try:
            keys.append(JWKRegistry.import_key(data))
        except (JoseError, ValueError, TypeError, KeyError):
            logger.warning("the provider has a key that is not understood: %s", str(data.get("kid"))[:100])
    return keys


def _fitting(keys: list[Any], kid: str | None) -> list[Any]:
    return keys if kid is None else [key for key in keys if key.get("kid") == kid]


def _signed(token: str, keys: list[Any]) -> dict[str, Any] | None:
    """The claims, if one of the keys has signed them."""
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        return claims
    return None
