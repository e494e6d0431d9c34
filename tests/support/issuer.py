"""An OpenID issuer on this machine: a real HTTP server, real keys, and tokens of any kind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "neve"


@dataclass
class Issuer:
    """What the server answers; tests change it while it runs."""

    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    private: dict[str, Any] = field(default_factory=dict)
    up: bool = True
    padding: int = 0
    """Bytes that make an answer long."""
    issuer: str | None = None
    """What the discovery document says of itself, if it is not the truth."""
    redirect: str = ""
    asked: list[str] = field(default_factory=list)
    client: str = "neve-console"
    secret: str = ""
    """Secret of the client; empty: it is public."""
    life_s: int = 600
    """Life of access tokens."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Code → what the browser was sent with."""
    refreshes: set[str] = field(default_factory=set)
    """Living refresh tokens; each may be used once."""
    wrong: dict[str, Any] = field(default_factory=dict)
    """Claims of ID tokens that are not as they should be."""

    def add_rsa(self, key_id: str, bits: int = 2048, **more: str) -> None:
        """Publish an RSA key."""
        key = rsa.generate_private_key(65537, bits)
        self.private[key_id] = key
        public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        self.keys.append({**public, "kid": key_id, "use": "sig", **more})

    def add_ec(self, key_id: str) -> None:
        """Publish a key on P-256."""
        key = ec.generate_private_key(ec.SECP256R1())
        self.private[key_id] = key
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        self.keys.append({**public, "kid": key_id, "use": "sig"})

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return sound claims; None takes one out."""
        now_s = int(time.time())
        sound = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now_s,
            "exp": now_s + 600,
            "roles": ["lake-readers"],
        }
        return {name: value for name, value in {**sound, **changed}.items() if value is not None}

    def token(
        self, key_id: str = "one", algorithm: str = "RS256", head_type: str = "JWT", **changed: Any
    ) -> str:
        """Return a token that is signed with one of the keys."""
        text = json.dumps(self.claims(**changed)).encode()
        # Not `jwt.encode`, which refuses some of the claims that a gateway must refuse.
        return jwt.PyJWS().encode(
            text,
            self.private[key_id],
            algorithm=algorithm,
            headers={"kid": key_id, "typ": head_type},
        )

    def forged(self, head: Mapping[str, Any], secret: bytes, **changed: Any) -> str:
        """Return a token with any head, signed with HMAC by a secret; empty: not signed."""
        parts = [json.dumps(each).encode() for each in (head, self.claims(**changed))]
        body = b".".join(map(_encoded, parts))
        signature = hmac.new(secret, body, hashlib.sha256).digest() if secret else b""
        return (body + b"." + _encoded(signature)).decode()

    def admit(self, query: Mapping[str, str]) -> str:
        """Return where a browser is sent back to: the person has agreed."""
        assert query["client_id"] == self.client
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = dict(query)
        answer = urlencode({"code": code, "state": query["state"], "iss": self.url})
        return f"{query['redirect_uri']}?{answer}"

    def exchange(self, form: Mapping[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Return the answer of the token endpoint: status and document."""
        words = (quote(word, safe="") for word in (self.client, self.secret))  # RFC 6749
        pair = base64.b64encode(":".join(words).encode()).decode()
        if self.secret and authorization != f"Basic {pair}":
            return 401, {"error": "invalid_client"}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refreshes:
                return 400, {"error": "invalid_grant", "error_description": "the session has ended"}
            self.refreshes.remove(form["refresh_token"])
            return 200, self._issued()
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if asked is None or _encoded(digest).decode() != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        id_claims = {"aud": self.client, "nonce": asked["nonce"], "roles": None, **self.wrong}
        return 200, {**self._issued(), "id_token": self.token(**id_claims)}

    def _issued(self) -> dict[str, Any]:
        refresh = f"refresh-{secrets.token_hex(8)}"
        self.refreshes.add(refresh)
        # Distinct, as tokens of one second would not be.
        access = self.token(
            exp=int(time.time()) + self.life_s, jti=secrets.token_hex(8), head_type="at+jwt"
        )
        return {"access_token": access, "token_type": "Bearer", "refresh_token": refresh}

    def answer(self, path: str) -> Mapping[str, Any] | None:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer or self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }
        return {"keys": self.keys, "padding": "x" * self.padding} if path == "/keys" else None


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


@contextmanager
def running_issuer(host: str = "127.0.0.1") -> Iterator[Issuer]:
    """Serve an issuer with one RSA key until the block ends.

    Args:
        host: Name of this machine in its address.
    """
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if issuer.up and path == "/authorize":
                self.send_response(302)
                self.send_header("Location", issuer.admit(dict(parse_qsl(query))))
                self.end_headers()
                return
            found = issuer.answer(self.path) if issuer.up else None
            if issuer.redirect and self.path == "/keys":
                self.send_response(302)
                self.send_header("Location", issuer.redirect)
                self.end_headers()
                return
            self.send_response(503 if not issuer.up else 200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, document = 503, {}
            if issuer.up and self.path == "/token":
                sent = self.headers.get("Authorization", "")
                status, document = issuer.exchange(dict(parse_qsl(body)), sent)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://{host}:{server.server_port}"
    issuer.add_rsa("one")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
