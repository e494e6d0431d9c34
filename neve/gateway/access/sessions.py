"""Sessions of the console: one-time codes, and the cookie that stands for a token.

A session holds the token that it was begun with, and asks at every visit who that token identifies
now. So a session has the token's rights, ends when the token expires or is revoked, and gains
nothing from having been begun earlier. Sessions live in the memory of the gateway: a restart ends
them. Only digests of codes and cookies are kept.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from common.runtime import Clock
from neve.gateway.access.callers import Caller
from neve.gateway.access.issuer_sign_in import IssuedTokens
from neve.gateway.problems import UnauthorizedError

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
