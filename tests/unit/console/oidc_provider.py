"""A small OpenID provider, a process of its own: it logs everybody in at once, as who it was told, and is as wrong as it was told.

Rules: loopback alone. It takes what a provider takes: a known client and redirect address, its secret, a code once, the verifier of the
challenge. `Provider.be(...)` changes what it does: `claims` are put over those of the ID token (None takes one out), `sign` is how it is
signed, `configuration` goes over what it tells of itself, `hang` and `redirect` are paths that do not answer, or send elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

CLIENT, SECRET = "the console", "s3cret: of the+console"


class Provider:
    """The process, from the side of a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the provider has ended"
        return line

    def be(self, **how: Any) -> dict[str, Any]:
        """Change what it does, from how it is at first; what it has seen so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(how) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


# -- the process itself --------------------------------------------------------------------------------------------------------


class State:
    """What it is told to do, and what it has seen."""

    def __init__(self) -> None:
        self.how: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.seen: list[str] = []
        self.released = threading.Event()
        self.url = ""
        self.number = 0
        self.rotate()

    def rotate(self) -> None:
        from joserfc.jwk import ECKey, RSAKey

        self.number += 1
        self.rsa = RSAKey.generate_key(2048, {"kid": f"rsa-{self.number}", "use": "sig"})
        self.ec = ECKey.generate_key("P-256", {"kid": f"ec-{self.number}", "use": "sig"})

    def id_token(self, asked: dict[str, str]) -> str:
        from joserfc import jws
        from joserfc.jwk import RSAKey

        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url, "sub": "42", "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": asked["nonce"],
            "preferred_username": "ann", "groups": ["staff", "kafka-admins"],
        }  # fmt: skip
        for name, value in self.how.get("claims", {}).items():
            if value is None:
                claims.pop(name)
            else:
                claims[name] = now + value if name in ("exp", "iat", "nbf") and type(value) is int else value
        sign, kid = self.how.get("sign", "RS256"), f"rsa-{self.number}"
        payload = json.dumps(claims).encode()
        if sign == "none":
            return f"{_b64({'alg': 'none', 'kid': kid})}.{_b64(claims)}."
        if sign.startswith("HS256"):  # by hand, as libraries refuse to
            key = self.rsa.as_pem(private=False) if sign == "HS256 by the public key" else SECRET.encode()
            signed = f"{_b64({'alg': 'HS256', 'kid': kid})}.{_b64(claims)}"
            digest = hmac.new(key, signed.encode(), hashlib.sha256).digest()
            return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        if sign == "another key":
            return str(jws.serialize_compact({"alg": "RS256", "kid": kid}, payload, RSAKey.generate_key(2048)))
        if sign == "ES256":
            return str(jws.serialize_compact({"alg": "ES256", "kid": f"ec-{self.number}"}, payload, self.ec))
        if sign == "without kid":
            return str(jws.serialize_compact({"alg": "RS256"}, payload, self.rsa))
        if sign == "no token":
            return "x"
        token = str(jws.serialize_compact({"alg": "RS256", "kid": kid}, payload, self.rsa))
        if sign == "changed afterwards":
            head, _, signature = token.split(".")
            return f"{head}.{_b64({**claims, 'groups': ['kafka-admins']})}.{signature}"
        return token


def _b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class Handler(BaseHTTPRequestHandler):
    state: State
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(_flat(self.rfile.read(int(self.headers.get("content-length", 0))).decode()))

    def _answer(self, form: dict[str, str]) -> None:
        state, parts = self.state, urlsplit(self.path)
        state.seen.append(parts.path)
        if state.how.get("hang") == parts.path:
            state.released.wait(60)
        if state.how.get("redirect") == parts.path:
            self._send(307, b"", location=f"{state.url}/elsewhere")
        elif parts.path == "/.well-known/openid-configuration":
            told = {
                "issuer": state.url,
                "authorization_endpoint": f"{state.url}/authorize",
                "token_endpoint": f"{state.url}/token",
                "jwks_uri": f"{state.url}/keys",
                "end_session_endpoint": f"{state.url}/logout",
                "authorization_response_iss_parameter_supported": True,
            }
            self._json(200, {**told, **state.how.get("configuration", {})})
        elif parts.path == "/keys":
            keys = [key.as_dict(private=False) for key in (state.rsa, state.ec)]
            shared = {
                "kty": "oct",
                "kid": f"rsa-{state.number}",
                "k": base64.urlsafe_b64encode(SECRET.encode()).decode(),
            }
            self._json(200, {"keys": [shared, {"kty": "odd"}, 7, *keys]})
        elif parts.path == "/authorize":
            self._authorize(_flat(parts.query))
        elif parts.path == "/token":
            self._token(form)
        elif parts.path == "/large":
            self._send(200, b"x" * (2 << 20))
        else:
            self._send(404, b"no")

    def _authorize(self, asked: dict[str, str]) -> None:
        wanted = {"response_type": "code", "client_id": CLIENT, "code_challenge_method": "S256"}
        assert {name: asked[name] for name in wanted} == wanted and "openid" in asked["scope"].split(), asked
        code = f"code-{len(self.state.codes)}-{time.time_ns()}"
        self.state.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.state.url}
        self._send(302, b"", location=f"{asked['redirect_uri']}?{urlencode(back)}")

    def _token(self, form: dict[str, str]) -> None:
        kind, _, pair = self.headers.get("authorization", "").partition(" ")
        name, _, secret = base64.b64decode(pair).decode().partition(":") if kind == "Basic" else ("", "", "")
        given = (
            (unquote_plus(name), unquote_plus(secret)) if kind else (form.get("client_id"), form.get("client_secret"))
        )
        asked = self.state.codes.pop(form.get("code", ""), None)
        proof = (
            base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
            .rstrip(b"=")
            .decode()
        )
        if given != (CLIENT, SECRET):
            self._json(401, {"error": "invalid_client"})
        elif asked is None or asked["redirect_uri"] != form.get("redirect_uri") or asked["code_challenge"] != proof:
            self._json(400, {"error": "invalid_grant"})
        else:
            self._json(200, {"access_token": "x", "token_type": "Bearer", "id_token": self.state.id_token(asked)})

    def _json(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the console has stopped to wait


def _flat(query: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(query).items()}


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = Handler.state = State()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(state.url, flush=True)
    for line in sys.stdin:
        state.how = json.loads(line)
        state.released.set()
        state.released = threading.Event()
        if state.how.pop("rotate", False):
            state.rotate()
        print(json.dumps({"seen": state.seen}), flush=True)


if __name__ == "__main__":
    main()
