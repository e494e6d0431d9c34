"""The file of named tokens, with their grants and expiry times.

    {"format": 1, "tokens": [{"name": "ci", "digest": "…", "grants": ["read", "write:events-*"],
                              "created_at_s": 1764115200.0, "expires_at_s": 1771891200.0}]}

The file stores only digests. A plain SHA-256 is sufficient, although passwords need a slow
function: a token has 256 random bits, so a search is infeasible however fast each try is. The
gateway reads the file again when it changes, so that tokens can be added and revoked while it runs.

Several entries may have the same name: the old and the new token during a rotation.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import ConfigError, RefusedError, RequestError
from common.model.table import DNS_LABEL
from common.runtime import Clock
from common.telemetry import Log
from neve.api.files import open_regular, write_private
from neve.gateway.access.callers import Caller, parse_grants

FORMAT = 1
FILE_BYTES_MAX = 4 * 1024**2
TOKENS_MAX = 10_000
SECRET_BYTES = 32
"""Random bytes of a token; 16 would be enough."""
PREFIX = "neve_"
"""Prefix of a token, so that secret scanners recognise it."""
LOOK_INTERVAL_S = 1.0
"""Interval between checks for file changes, in seconds."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedToken:
    """One entry of the file."""

    name: str
    digest: str
    """SHA-256 of the token, as hex."""
    grants: tuple[str, ...]
    created_at_s: float
    expires_at_s: float | None = None
    """Expiry time by the clock of the gateway; None: never."""

    @property
    def id(self) -> str:
        """Id that distinguishes tokens of the same name, without revealing the token."""
        return self.digest[:8]

    def lives(self, now_s: float) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at_s is None or now_s < self.expires_at_s


def digest_of(token: bytes) -> str:
    """Return the digest of a token, as stored in the file."""
    return hashlib.sha256(token).hexdigest()


# --------------------------------------------------------------------------------- The file as text


def parse_tokens(text: bytes, where: str) -> tuple[NamedToken, ...]:
    """Parse the entries of a token file.

    Args:
        text: Content of the file.
        where: Name of the file, for messages.

    Raises:
        ConfigError: The text is not a token file, or an entry is malformed; the message has the
            number of the entry.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"token file {where} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f"token file {where} has another format, expected {{"
            f'"format": {FORMAT}, "tokens": […]}} as `neve token create` writes it'
        )
    entries = document.get("tokens")
    if not isinstance(entries, list) or len(entries) > TOKENS_MAX:
        raise ConfigError(f"token file {where}: tokens is no list of at most {TOKENS_MAX} entries")
    return tuple(
        _entry(entry, f"token file {where}, entry {n}") for n, entry in enumerate(entries, 1)
    )


def _entry(entry: Any, where: str) -> NamedToken:
    allowed = {"name", "digest", "grants", "created_at_s", "expires_at_s"}
    if not isinstance(entry, dict) or set(entry) - allowed:
        raise ConfigError(f"{where} is not understood, expected the fields {', '.join(allowed)}")
    name, digest, grants = (entry.get(key) for key in ("name", "digest", "grants"))
    if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
        raise ConfigError(f"{where}: name {str(name)[:100]!r} is no DNS label such as ci-1")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{where} ({name}): digest is no SHA-256, expected 64 hex digits")
    if not isinstance(grants, list) or not all(isinstance(grant, str) for grant in grants):
        raise ConfigError(f"{where} ({name}): grants is no list of texts such as `read:events-*`")
    try:
        parse_grants(grants)
    except RequestError as error:
        raise ConfigError(f"{where} ({name}): {error}") from error
    begun_s, ends_s = entry.get("created_at_s", 0.0), entry.get("expires_at_s")
    if not _is_time(begun_s) or not (ends_s is None or _is_time(ends_s)):
        raise ConfigError(f"{where} ({name}): a time is no number of seconds")
    return NamedToken(
        name=name,
        digest=digest,
        grants=tuple(grants),
        created_at_s=float(begun_s),
        expires_at_s=None if ends_s is None else float(ends_s),
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def tokens_text(tokens: Sequence[NamedToken]) -> str:
    """Return entries as the text of a file."""
    return json.dumps({"format": FORMAT, "tokens": [asdict(token) for token in tokens]}, indent=1)


# ------------------------------------------------------------------------ Changes of the file; pure


def with_token(tokens: Sequence[NamedToken], fresh: NamedToken) -> tuple[NamedToken, ...]:
    """Return the entries with a new one added.

    Raises:
        RefusedError: The name is taken, or there are too many tokens.
    """
    if any(token.name == fresh.name for token in tokens):
        raise RefusedError(
            f"token {fresh.name!r} is there already: `neve token rotate {fresh.name}` replaces it,"
            f" `neve token revoke {fresh.name}` ends it"
        )
    if len(tokens) >= TOKENS_MAX:
        raise RefusedError(f"there are {TOKENS_MAX} tokens, which is the most: revoke some")
    return (*tokens, fresh)


def with_rotated(
    tokens: Sequence[NamedToken], name: str, digest: str, *, now_s: float, overlap_s: float
) -> tuple[NamedToken, ...]:
    """Return the entries with a new token of a name; its older tokens expire after an overlap.

    The new token has the grants and the lifetime of the newest older token.

    Raises:
        RequestError: No token has the name.
    """
    last = _named(tokens, name)[-1]
    life_s = None if last.expires_at_s is None else last.expires_at_s - last.created_at_s
    fresh = replace(
        last,
        digest=digest,
        created_at_s=now_s,
        expires_at_s=None if life_s is None else now_s + life_s,
    )
    end_s = now_s + overlap_s
    kept = [
        replace(token, expires_at_s=min(end_s, token.expires_at_s or end_s))
        if token.name == name
        else token
        for token in tokens
        if token.name != name or token.lives(now_s)
    ]
    return (*kept, fresh)


def without_token(
    tokens: Sequence[NamedToken], name: str, token_id: str | None
) -> tuple[NamedToken, ...]:
    """Return the entries without all tokens of a name, or without one of them.

    Raises:
        RequestError: The token does not exist.
    """
    ids = {token.id for token in _named(tokens, name)}
    if token_id is not None and token_id not in ids:
        raise RequestError(
            f"token {name!r} has no id {token_id[:64]!r}, expected one of {', '.join(sorted(ids))}"
        )
    return tuple(
        token for token in tokens if token.name != name or (token_id and token.id != token_id)
    )


def _named(tokens: Sequence[NamedToken], name: str) -> list[NamedToken]:
    matching = [token for token in tokens if token.name == name]
    if not matching:
        names = ", ".join(sorted({token.name for token in tokens})) or "none"
        raise RequestError(f"no token is named {name[:100]!r}; there are: {names}")
    return matching


# --------------------------------------------------------------------- The file, for `neve token …`


class TokenFile:
    """Writer of the token file; changes are serialized and atomic."""

    def __init__(self, path: Path) -> None:
        """Create a writer without reading the file. A missing file has no tokens."""
        self.path = path

    def tokens(self) -> tuple[NamedToken, ...]:
        """Return the entries.

        Raises:
            ConfigError: The file cannot be read, or is malformed.
        """
        return parse_tokens(text, str(self.path)) if (text := read_text(self.path)) else ()

    def create(
        self, name: str, grants: Sequence[str], *, now_s: float, life_s: float | None
    ) -> tuple[NamedToken, str]:
        """Add a token; return its entry and the token, which cannot be retrieved later.

        Raises:
            RequestError: Name or grants are malformed.
            RefusedError: The name is taken.
        """
        if not DNS_LABEL.fullmatch(name):
            raise RequestError(
                f"token name {name[:100]!r} must be a DNS label: 1 to 63 lower-case letters, digits"
                " and dashes, with a letter or digit at both ends"
            )
        token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        fresh = NamedToken(
            name=name,
            digest=digest_of(token.encode()),
            grants=tuple(grant.text for grant in parse_grants(grants)),
            created_at_s=now_s,
            expires_at_s=None if life_s is None else now_s + life_s,
        )
        self._change(lambda tokens: with_token(tokens, fresh))
        return fresh, token

    def rotate(self, name: str, *, now_s: float, overlap_s: float) -> tuple[NamedToken, str]:
        """Replace a token; return the new entry and the token, which cannot be retrieved later.

        Raises:
            RequestError: No token has the name.
        """
        token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        digest = digest_of(token.encode())
        changed = self._change(
            lambda tokens: with_rotated(tokens, name, digest, now_s=now_s, overlap_s=overlap_s)
        )
        return changed[-1], token

    def revoke(self, name: str, token_id: str | None = None) -> int:
        """Remove the tokens of a name, or one of them; return the number of remaining tokens.

        Raises:
            RequestError: The token does not exist.
        """
        return len(self._change(lambda tokens: without_token(tokens, name, token_id)))

    def _change(
        self, change: Callable[[Sequence[NamedToken]], tuple[NamedToken, ...]]
    ) -> tuple[NamedToken, ...]:
        with self._locked():
            changed = change(self.tokens())
            write_private(self.path, tokens_text(changed).encode())
        return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other writers, with a separate lock file because the token file is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def read_text(path: Path) -> bytes:
    """Return the content of a token file; empty if the file does not exist.

    Raises:
        ConfigError: The file cannot be read, is too large, or is writable by everybody.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be read: {error.strerror}") from error
    if mode & 0o002:
        raise ConfigError(f"token file {path} may be written by everybody: chmod 600 {path}")
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"token file {path} has more than {FILE_BYTES_MAX} bytes")
    return text


# ------------------------------------------------------------------------ The file, for the gateway


class KnownTokens:
    """The gateway's copy of the token file, checked for changes once per second.

    A token that is unknown is looked for in a changed file at once, so that a token works as soon
    as it has been created. A removed file has no tokens. If the file cannot be read, the known
    tokens stay valid and the cause is logged.
    """

    def __init__(self, path: Path | None, clock: Clock, log: Log) -> None:
        """Read the file.

        Args:
            path: Path of the file; None: no file is configured.
            clock: Clock for expiry times and for the checks of the file.
            log: Receives an event when the file was read, or could not be.
        """
        self._path, self._clock, self._log = path, clock, log
        self._looked_s = -LOOK_INTERVAL_S
        self._seen: tuple[int, ...] | None = None
        self._fault = ""
        self._by_digest: Mapping[str, tuple[NamedToken, Caller]] = {}

    def caller(self, token: bytes) -> Caller | None:
        """Return the caller that a token identifies; None: the token is unknown or expired."""
        now_s = self._clock.now_s()
        digest = digest_of(token)
        if self._path is not None:
            is_due = not 0 <= now_s - self._looked_s < LOOK_INTERVAL_S
            if is_due:
                self._looked_s = now_s
            if is_due or digest not in self._by_digest:
                self._look(self._path, is_due=is_due)
        # Digests cannot be chosen, so the duration of the look-up reveals nothing about a token.
        entry = self._by_digest.get(digest)
        if entry is None or not hmac.compare_digest(entry[0].digest, digest):
            return None
        return entry[1] if entry[0].lives(now_s) else None

    def _look(self, path: Path, *, is_due: bool) -> None:
        """Read the file if it has changed, or if a regular check follows one that failed."""
        signature = _signature(path)
        # Wrong tokens cost one look at the folder: only a change makes the gateway read the file.
        if signature == self._seen and not (self._fault and is_due):
            return
        self._seen = signature
        try:
            tokens = parse_tokens(text, str(path)) if (text := read_text(path)) else ()
        except ConfigError as error:
            self._report_fault(str(error))
            return
        self._log("tokens read", tokens=len(tokens))
        self._fault = ""
        self._by_digest = {
            token.digest: (token, Caller(token.name, parse_grants(token.grants)))
            for token in tokens
        }

    def _report_fault(self, fault: str) -> None:
        if fault != self._fault:
            self._log("tokens not read", cause=fault)
        self._fault = fault


def _signature(path: Path) -> tuple[int, ...]:
    """Return values that change with the file; empty if it does not exist."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
