"""Sign-in to the console at an OpenID issuer: the authorization code flow with PKCE.

Specifications: OpenID Connect Core 1.0; RFC 6749 (OAuth 2.0), 7636 (PKCE), 9700 (best practices).
A sign-in that has begun is bound to its browser by a cookie, and may be ended once. The rights of
the session come from the access token, which is checked as the API checks it; the ID token proves
only that the answer belongs to this sign-in.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from common.config import secret_of
from common.errors import ConfigError, UnavailableError
from common.runtime import Clock
from common.settings import Settings
from neve.gateway.access.oidc import (
    DISCOVERY,
    FRESH_S,
    Exchange,
    OidcTokens,
    bounded_fetch,
    require_safe_url,
)
from neve.gateway.problems import UnauthorizedError

CALLBACK = "/console/sign-in/issued"
LIFE_S = 600.0
"""How long a person may take at the issuer."""
PENDING_MAX = 1000
SECRET_BYTES = 32
ENDPOINTS = ("authorization_endpoint", "token_endpoint")


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """What an issuer has answered."""

    access_token: str
    refresh_token: str = ""
    """Gets the next access token; empty: the issuer gives none."""
    id_token: str = ""


@dataclass(frozen=True, slots=True)
class _Pending:
    cookie: str
    nonce: str
    verifier: str
    following: str
    ends_s: float


class IssuerSignIn:
    """Sign-ins that have begun, and the calls of the issuer. For one event loop."""

    def __init__(
        self,
        settings: Settings,
        tokens: OidcTokens,
        exchange: Exchange,
        clock: Clock,
    ) -> None:
        """Start without sign-ins.

        Args:
            settings: With issuer, client and address of the gateway.
            tokens: Checks ID tokens.
            exchange: Sends requests to the issuer.
            clock: Clock for the ends of sign-ins.
        """
        access = settings.access
        self.issuer = access.oidc_issuer.rstrip("/")
        self._client, self._scopes = access.oidc_client_id, access.oidc_scopes
        self._secret = secret_of("access.oidc_client_secret", "", access.oidc_client_secret_file)
        self._callback = settings.gateway.public_url.rstrip("/") + CALLBACK
        self._tokens, self._exchange, self._clock = tokens, exchange, clock
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._endpoints: Mapping[str, str] = {}
        self._read_s = -FRESH_S

    @classmethod
    def of(
        cls, settings: Settings, tokens: OidcTokens | None, clock: Clock
    ) -> "IssuerSignIn | None":
        """Return the sign-in of the settings; None: no client is configured.

        Raises:
            ConfigError: The settings lack something that a client needs.
        """
        access = settings.access
        if not access.oidc_client_id:
            return None
        if tokens is None:
            raise ConfigError("setting access.oidc_client_id needs access.oidc_issuer")
        if not settings.gateway.public_url:
            raise ConfigError(
                "setting access.oidc_client_id needs gateway.public_url, to which the issuer sends"
                " browsers back"
            )
        return cls(settings, tokens, bounded_fetch(access.oidc_authorities), clock)

    async def begin(self, following: str) -> tuple[str, str]:
        """Begin a sign-in; return the issuer's address for the browser, and a cookie's value.

        Args:
            following: Page that follows.

        Raises:
            UnavailableError: The issuer does not answer.
        """
        endpoint = (await self._endpoints_now())["authorization_endpoint"]
        state, cookie, nonce, verifier = (secrets.token_urlsafe(SECRET_BYTES) for _ in range(4))
        while len(self._pending) >= PENDING_MAX:
            self._pending.popitem(last=False)
        ends_s = self._clock.now_s() + LIFE_S
        self._pending[state] = _Pending(_digest(cookie), nonce, verifier, following, ends_s)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self._callback,
            "scope": " ".join(self._scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in endpoint else "?"
        return f"{endpoint}{joint}{urlencode(query)}", cookie

    async def end(self, cookie: str, answer: Mapping[str, str]) -> tuple[IssuedTokens, str]:
        """End a sign-in; return the tokens, and the page that follows.

        Args:
            cookie: Value of the browser's cookie.
            answer: Query with which the issuer has sent the browser back.

        Raises:
            UnauthorizedError: The answer belongs to no sign-in of this browser, or the issuer has
                refused.
            UnavailableError: The issuer does not answer.
        """
        pending = self._pending.pop(answer.get("state", ""), None)
        if pending is None or pending.ends_s <= self._clock.now_s():
            raise UnauthorizedError("the sign-in took too long, or was ended before: begin again")
        if not hmac.compare_digest(pending.cookie, _digest(cookie)):
            raise UnauthorizedError("the sign-in was begun in another browser")
        if "iss" in answer and answer["iss"].rstrip("/") != self.issuer:
            raise UnauthorizedError("another issuer has answered")
        if "code" not in answer:
            refusal = answer.get("error_description") or answer.get("error", "no code")
            raise UnauthorizedError(f"the issuer has refused: {refusal[:300]}")
        issued = await self._ask(
            grant_type="authorization_code",
            code=answer["code"],
            redirect_uri=self._callback,
            code_verifier=pending.verifier,
        )
        await self._tokens.check_id_token(issued.id_token, self._client, pending.nonce)
        return issued, pending.following

    async def refreshed(self, refresh_token: str) -> IssuedTokens:
        """Return the next tokens of a session.

        Raises:
            UnauthorizedError: The issuer gives none: the session has ended there.
            UnavailableError: The issuer does not answer.
        """
        issued = await self._ask(grant_type="refresh_token", refresh_token=refresh_token)
        return IssuedTokens(issued.access_token, issued.refresh_token or refresh_token)

    async def _ask(self, **form: str) -> IssuedTokens:
        endpoint = (await self._endpoints_now())["token_endpoint"]
        headers = {}
        if self._secret:
            pair = f"{quote(self._client, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self._client
        text = await self._exchange(endpoint, form, headers)
        document = _document(text)
        texts = {name: value for name, value in document.items() if isinstance(value, str)}
        if "access_token" not in texts:
            refusal = texts.get("error_description") or texts.get("error", "no access token")
            raise UnauthorizedError(f"the issuer has refused: {refusal[:300]}")
        return IssuedTokens(
            texts["access_token"], texts.get("refresh_token", ""), texts.get("id_token", "")
        )

    async def _endpoints_now(self) -> Mapping[str, str]:
        """Return the issuer's endpoints, from its discovery document.

        Raises:
            UnavailableError: The issuer does not answer, or its document lacks them.
        """
        if self._clock.now_s() - self._read_s < FRESH_S and self._endpoints:
            return self._endpoints
        document = _document(await self._exchange(self.issuer + DISCOVERY))
        try:
            endpoints = {name: str(document[name]) for name in ENDPOINTS}
            for name, url in endpoints.items():
                require_safe_url(name, url)
        except (KeyError, ConfigError) as error:
            raise UnavailableError(f"the issuer {self.issuer} cannot be used: {error}") from error
        if str(document.get("issuer", "")).rstrip("/") != self.issuer:
            raise UnavailableError(f"the discovery document is not of issuer {self.issuer}")
        self._endpoints, self._read_s = endpoints, self._clock.now_s()
        return endpoints


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _document(text: bytes) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        UnavailableError: The text is something else.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnavailableError("the issuer has not answered with JSON") from error
    if not isinstance(document, dict):
        raise UnavailableError("the issuer has not answered with a JSON object")
    return document
