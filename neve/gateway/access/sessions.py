"""Sessions of the console: sign-in at an issuer, one-time codes, cookies that stand for tokens.

A session holds the token that it was begun with, and asks at every visit who that token identifies
now. So a session has the token's rights, ends when the token expires or is revoked, and gains
nothing from having been begun earlier. Sessions live in the memory of the gateway: a restart ends
them. Only digests of codes and cookies are kept.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from common.config import secret_of
from common.errors import ConfigError, UnavailableError
from common.runtime import Clock
from common.settings import Settings
from neve.gateway.access.callers import Caller
from neve.gateway.access.oidc import (
    DISCOVERY,
    FRESH_S,
    Exchange,
    OidcTokens,
    bounded_fetch,
    require_safe_url,
)
from neve.gateway.problems import UnauthorizedError

# ---------------------------------------------------------------------- Sign-in at an OpenID issuer
# Sign-in to the console at an OpenID issuer: the authorization code flow with PKCE.
#
# Specifications: OpenID Connect Core 1.0; RFC 6749 (OAuth 2.0), 7636 (PKCE), 9700 (best
# practices). A sign-in that has begun is bound to its browser by a cookie, and may be ended once.
# The rights of the session come from the access token, which is checked as the API checks it; the
# ID token proves only that the answer belongs to this sign-in.


CALLBACK = "/console/sign-in/issued"
SIGN_IN_LIFE_S = 600.0
"""How long a person may take at the issuer."""
PENDING_MAX = 1000

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
        ends_s = self._clock.now_s() + SIGN_IN_LIFE_S
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


# ----------------------------------------------------------------------------------------- Sessions


CODE_PREFIX = "once_"
CODE_LIFE_S = 300.0
"""How long the code of a link may be used."""
CODES_MAX, SESSIONS_MAX = 1000, 10_000
OF_TOKEN_MAX = 100
"""Codes, or sessions, of one token; a further one ends the oldest."""
SECRET_BYTES = 32
COOKIE = "neve-"
"""Beginning of the cookie's name; the id of the store follows, because the ports of one host share
their cookies."""
COOKIES_MAX = 16
"""Cookies of other stores that one request may carry."""
NOTES_MAX = 5
NOTE_CHARS_MAX = 10_000

Refresh = Callable[[str], Awaitable[IssuedTokens]]
"""Returns the next tokens of a session by its refresh token."""
Identify = Callable[[bytes], Awaitable[Caller]]
"""Returns the caller that an `Authorization` header identifies; raises UnauthorizedError."""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence that the next page shows once; `kind`: `done` or `error`."""

    kind: str
    text: str


@dataclass(slots=True, kw_only=True)
class ConsoleSession:
    """A browser that is signed in."""

    digest: str
    token: bytes
    ends_s: float
    csrf: str
    """Value that each form of the session must send."""
    name: str
    """Name of its caller."""
    refresh_token: str = ""
    """Gets the next token from the issuer when this one has ended; empty: the session ends then."""
    refreshing: asyncio.Lock = field(default_factory=asyncio.Lock)
    notes: list[Note] = field(default_factory=list)
    streams: int = 0
    """Open streams of events."""

    def note(self, kind: str, text: str) -> None:
        """Keep a sentence for the next page."""
        self.notes = [*self.notes, Note(kind, text[:NOTE_CHARS_MAX])][-NOTES_MAX:]

    def take_notes(self) -> list[Note]:
        """Return the sentences for this page, and forget them."""
        notes, self.notes = self.notes, []
        return notes

    def has_sent(self, csrf: str) -> bool:
        """Return whether a form has the value of this session."""
        return hmac.compare_digest(csrf.encode(), self.csrf.encode())


@dataclass(frozen=True, slots=True)
class _Code:
    token: bytes
    ends_s: float


class Sessions:
    """All codes and sessions of a gateway. For one event loop."""

    def __init__(
        self, identify: Identify, life_s: float, clock: Clock, refresh: Refresh | None = None
    ) -> None:
        """Start without sessions.

        Args:
            identify: Returns the caller of an `Authorization` header.
            life_s: Longest life of a session.
            clock: Clock for the ends of codes and sessions.
            refresh: Gets the next tokens from the issuer; None: none is configured.
        """
        self._identify, self._life_s, self._clock = identify, life_s, clock
        self._refresh = refresh
        self._codes: OrderedDict[str, _Code] = OrderedDict()
        self._sessions: OrderedDict[str, ConsoleSession] = OrderedDict()

    def code_for(self, token: bytes) -> tuple[str, float]:
        """Return a new code that begins one session of a token, and when the code ends."""
        now_s = self._clock.now_s()
        code, ends_s = CODE_PREFIX + secrets.token_urlsafe(SECRET_BYTES), now_s + CODE_LIFE_S
        _make_room(self._codes, token, now_s, CODES_MAX)
        self._codes[_digest(code)] = _Code(token, ends_s)
        return code, ends_s

    async def begin(self, secret: str) -> tuple[str, Caller]:
        """Begin a session by a token or a code; return the value of its cookie, and its caller.

        Raises:
            UnauthorizedError: The token identifies no caller, or the code is unknown, was used, or
                has ended.
            UnavailableError: The keys of the token's issuer are not available.
        """
        return await self._begin(self._token_of(secret.strip()))

    async def begin_issued(self, issued: IssuedTokens) -> tuple[str, Caller]:
        """Begin a session by tokens of the issuer; return the value of its cookie, and its caller.

        Raises:
            UnauthorizedError: The API does not accept the access token.
            UnavailableError: The keys of the issuer are not available.
        """
        return await self._begin(issued.access_token.encode(), issued.refresh_token)

    async def _begin(self, token: bytes, refresh_token: str = "") -> tuple[str, Caller]:
        caller = await self._identify(b"Bearer " + token)
        now_s = self._clock.now_s()
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        session = ConsoleSession(
            digest=_digest(cookie),
            token=token,
            ends_s=now_s + self._life_s,
            csrf=secrets.token_urlsafe(SECRET_BYTES),
            name=caller.name,
            refresh_token=refresh_token,
        )
        _make_room(self._sessions, token, now_s, SESSIONS_MAX)
        self._sessions[session.digest] = session
        return cookie, caller

    def _token_of(self, secret: str) -> bytes:
        if not secret.startswith(CODE_PREFIX):
            return secret.encode()
        code = self._codes.pop(_digest(secret), None)
        if code is None or code.ends_s <= self._clock.now_s():
            raise UnauthorizedError(
                "this link was used, or is older than five minutes: `neve console` makes a new one"
            )
        return code.token

    async def visit(self, cookies: Iterable[str]) -> tuple[ConsoleSession, Caller] | None:
        """Return the session of a request and its caller now; None: it has no living session.

        Args:
            cookies: Values of the cookies that may stand for a session.

        Raises:
            UnavailableError: The keys of the token's issuer are not available.
        """
        for cookie in cookies:
            if (session := self._sessions.get(_digest(cookie))) is not None:
                return await self.revisit(session)
        return None

    async def revisit(self, session: ConsoleSession) -> tuple[ConsoleSession, Caller] | None:
        """Return a session and its caller now, or None after ending it: its token has ended.

        Raises:
            UnavailableError: The keys of the token's issuer are not available.
        """
        if self._sessions.get(session.digest) is not session:
            return None
        if self._clock.now_s() < session.ends_s:
            try:
                return session, await self._caller_of(session)
            except UnauthorizedError:
                pass
        self.end(session)
        return None

    async def _caller_of(self, session: ConsoleSession) -> Caller:
        """Return the caller of a session now, with its next token if this one has ended.

        Raises:
            UnauthorizedError: The session has ended.
            UnavailableError: The issuer does not answer.
        """
        token = session.token
        try:
            return await self._identify(b"Bearer " + token)
        except UnauthorizedError:
            if not session.refresh_token or self._refresh is None:
                raise
        async with session.refreshing:  # A refresh token may be used once only.
            if session.token is token:
                issued = await self._refresh(session.refresh_token)
                session.token = issued.access_token.encode()
                session.refresh_token = issued.refresh_token
        caller = await self._identify(b"Bearer " + session.token)
        if caller.name != session.name:
            raise UnauthorizedError("the issuer has answered with the token of another caller")
        return caller

    def end(self, session: ConsoleSession) -> None:
        """End a session."""
        self._sessions.pop(session.digest, None)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _make_room(
    entries: "OrderedDict[str, ConsoleSession] | OrderedDict[str, _Code]",
    token: bytes,
    now_s: float,
    most: int,
) -> None:
    """Remove entries that have ended, and the oldest ones that are too many."""
    for key in [key for key, entry in entries.items() if entry.ends_s <= now_s]:
        del entries[key]
    own = [key for key, entry in entries.items() if entry.token == token]
    for key in own[: max(0, len(own) - OF_TOKEN_MAX + 1)]:
        del entries[key]
    while len(entries) >= most:
        entries.popitem(last=False)


def session_cookies(header: bytes) -> list[str]:
    """Return the values in a `Cookie` header that may stand for a session."""
    values = []
    for part in header.decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name.startswith(COOKIE) and value:
            values.append(value)
    return values[:COOKIES_MAX]
