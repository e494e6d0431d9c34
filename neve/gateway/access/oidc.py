"""Tokens of an OpenID Connect issuer: signed JWTs, checked against the issuer's published keys.

Specifications: OpenID Connect Core 1.0, Discovery 1.0; RFC 7519 (JWT), 7517 (keys), 8725 (best
practices). Only asymmetric algorithms from the settings are accepted, so neither `none` nor a
public key used as a shared secret can pass. The gateway reads the keys again when they are five
minutes old, or when a token names an unknown key. While the issuer is unavailable, old keys stay
valid for an hour.
"""

import asyncio
import hmac
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from common.access_settings import AccessSettings
from common.errors import ConfigError, RequestError, UnavailableError
from common.runtime import Clock
from common.telemetry import Log
from neve.api.files import open_regular
from neve.gateway.access.callers import GRANTS_MAX, Caller, TableGrant
from neve.gateway.problems import UnauthorizedError

ALGORITHMS = frozenset(
    {*(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)), "EdDSA"}
)
"""Supported algorithms; all of them need a private key."""
KEY_KINDS = frozenset({"RSA", "EC", "OKP"})
"""Kinds of public keys; `oct` would be a shared secret."""
RSA_BITS_MIN = 2048
LEEWAY_S = 30.0
"""How far the clocks of issuer and gateway may differ."""
TOKEN_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 256 * 1024
KEYS_MAX, TEXTS_MAX, SUBJECT_MAX = 100, 1000, 255
FETCH_WAIT_S = 5.0
FETCH_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Headers of requests to the issuer; compression is off because it hides the size of an answer."""
FRESH_S, STALE_MAX_S = 300.0, 3600.0
UNKNOWN_KEY_PAUSE_S = 10.0
"""Shortest time between two reads of the keys, however many tokens name unknown keys."""
DISCOVERY = "/.well-known/openid-configuration"
REQUIRED = ("exp", "iat", "iss", "aud", "sub")
ACCESS_TYPES = frozenset({"at+jwt", "application/at+jwt"})
"""Values of `typ` in the header of an access token (RFC 9068)."""
UNTYPED = frozenset({"", "jwt", "application/jwt"})
ACCESS_CLAIMS = frozenset({"bearer", "at+jwt", "access"})
"""Values of the claim `typ` in access tokens of some issuers; ID tokens have `ID`."""
ID_TOKEN_CLAIMS = ("nonce", "at_hash", "c_hash", "s_hash")
"""Claims that bind an ID token to a sign-in (OpenID Connect Core 1.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcRules:
    """Rules for the tokens of an issuer, from the settings."""

    issuer: str
    audience: str
    keys_url: str
    algorithms: tuple[str, ...]
    claim: str
    """Path of the claim whose texts are mapped to grants."""
    life_max_s: float
    grants: Mapping[str, tuple[TableGrant, ...]]
    """Text of the claim → its grants."""

    @classmethod
    def of(cls, access: AccessSettings) -> "OidcRules | None":
        """Return the rules of the settings; None: no issuer is configured.

        Raises:
            ConfigError: The settings are inconsistent, or admit no caller.
        """
        if not access.oidc_issuer:
            return None
        require_safe_url("oidc_issuer", access.oidc_issuer)
        if access.oidc_keys_url:
            require_safe_url("oidc_keys_url", access.oidc_keys_url)
        for name in ("oidc_audience", "oidc_claim", "oidc_grants", "oidc_algorithms"):
            if not getattr(access, name):
                raise ConfigError(f"setting access.{name} is empty, which access.oidc_issuer needs")
        wrong = sorted(set(access.oidc_algorithms) - ALGORITHMS)
        if wrong:
            raise ConfigError(
                f"setting access.oidc_algorithms names {wrong[0]!r}, expected some of"
                f" {', '.join(sorted(ALGORITHMS))}"
            )
        return cls(
            issuer=access.oidc_issuer,
            audience=access.oidc_audience,
            keys_url=access.oidc_keys_url,
            algorithms=access.oidc_algorithms,
            claim=access.oidc_claim,
            life_max_s=access.oidc_life_max_s,
            grants=_parse_texts(access.oidc_grants),
        )

    def grants_of(self, claims: Mapping[str, Any]) -> tuple[TableGrant, ...]:
        """Return the grants of a token, from its claims."""
        claim = _claim_at(claims, self.claim)
        texts = [claim] if isinstance(claim, str) else claim
        if not isinstance(texts, list):
            return ()
        granted = (self.grants.get(text, ()) for text in texts[:TEXTS_MAX] if isinstance(text, str))
        return tuple(dict.fromkeys(grant for grants in granted for grant in grants))[:GRANTS_MAX]


def _claim_at(claims: Any, path: str) -> Any:
    """Return a claim by its name or, if there is none, by a path of names joined by dots.

    A name may have dots itself: `https://example.com/roles`.
    """
    if not isinstance(claims, Mapping):
        return None
    if path in claims:
        return claims[path]
    ends = (at for at, letter in enumerate(path) if letter == ".")
    claims_below = (_claim_at(claims.get(path[:end]), path[end + 1 :]) for end in ends)
    return next((claim for claim in claims_below if claim is not None), None)


def require_safe_url(name: str, url: str) -> None:
    """Reject a URL that is neither HTTPS nor on the loopback: its keys could be forged."""
    parts = urlsplit(url)
    on_loopback = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
    if not parts.hostname or not (parts.scheme == "https" or on_loopback):
        raise ConfigError(f"setting access.{name} is {url!r}, expected https://…")


def _parse_texts(grants_text: tuple[str, ...]) -> Mapping[str, tuple[TableGrant, ...]]:
    grants: dict[str, tuple[TableGrant, ...]] = {}
    for pair in grants_text:
        text, equals, grant = pair.rpartition("=")
        if not equals or not text.strip():
            raise ConfigError(
                f"setting access.oidc_grants has {pair!r}, expected text=role or text=role:pattern"
            )
        try:
            parsed = TableGrant.parse(grant.strip())
        except RequestError as error:
            raise ConfigError(f"setting access.oidc_grants has {pair!r}: {error}") from error
        grants[text.strip()] = (*grants.get(text.strip(), ()), parsed)
    return grants


# ----------------------------------------------------------------------------------------- The keys


Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the content of a URL; raises UnavailableError."""


class Exchange(Protocol):
    """Returns the content of a URL; with a form, the answer to it, also to a refused one."""

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        """Send one request; raises UnavailableError."""


def bounded_fetch(authorities: str) -> Exchange:
    """Return a function that asks a URL with limits on size and time, and without redirects.

    Args:
        authorities: PEM file of the certificate authorities to trust; empty: the system's.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        if authorities:
            open_regular(authorities).close()
        tls = ssl.create_default_context(cafile=authorities or None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"setting access.oidc_authorities names {authorities}, which cannot be read: {error}"
        ) from error

    import httpx  # Here: few services have an issuer.

    async def fetch(
        url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        body, method = bytearray(), "GET" if form is None else "POST"
        accepted = {200} if form is None else {200, 400, 401}
        try:
            async with (
                asyncio.timeout(FETCH_WAIT_S),
                httpx.AsyncClient(verify=tls, trust_env=False, timeout=FETCH_WAIT_S) as client,
                client.stream(
                    method, url, data=form, headers={**FETCH_HEADERS, **headers}
                ) as answer,
            ):
                if answer.status_code not in accepted:
                    raise UnavailableError(f"{url} answered with status {answer.status_code}")
                async for chunk in answer.aiter_raw():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise UnavailableError(f"{url} sent more than {ANSWER_BYTES_MAX} bytes")
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            cause = str(error) or type(error).__name__
            raise UnavailableError(f"{url} does not answer: {cause}") from error
        return bytes(body)

    return fetch


class IssuerKeys:
    """Cache of the public keys that an issuer publishes, by key id. For one event loop."""

    def __init__(self, rules: OidcRules, fetch: Fetch, clock: Clock, log: Log) -> None:
        """Create an empty cache; the first token makes it read the keys."""
        self._rules, self._fetch, self._clock, self._log = rules, fetch, clock, log
        self._keys: Mapping[str, Any] = {}
        self._read_s: float | None = None
        self._tried_s: float | None = None
        self._asking = asyncio.Lock()

    async def key(self, key_id: str) -> Any:
        """Return a public key; None: the issuer has no such key.

        Args:
            key_id: Key id of the token; empty: the token has none, and the issuer must have
                exactly one key.

        Raises:
            UnavailableError: The keys are too old, and the issuer does not provide newer ones.
        """
        matching_key = self._key_of(key_id)
        if self._must_ask(matching_key is not None):
            async with self._asking:
                # Another task may have read the keys in the meantime.
                matching_key = self._key_of(key_id)
                if self._must_ask(matching_key is not None):
                    await self._ask()
                    matching_key = self._key_of(key_id)
        if self._age_s() > STALE_MAX_S:
            raise UnavailableError("the keys of the issuer cannot be read: try again")
        return matching_key

    def _key_of(self, key_id: str) -> Any:
        if not key_id:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def _age_s(self) -> float:
        return float("inf") if self._read_s is None else self._clock.now_s() - self._read_s

    def _must_ask(self, has_key: bool) -> bool:
        since_s = self._clock.now_s() - (self._tried_s or 0.0)
        rested = self._tried_s is None or since_s >= UNKNOWN_KEY_PAUSE_S
        return rested and (not has_key or self._age_s() > FRESH_S)

    async def _ask(self) -> None:
        self._tried_s = self._clock.now_s()
        try:
            self._keys = public_keys(await self._fetch(await self._keys_url()))
        except (UnavailableError, ValueError, RecursionError) as error:
            self._log("keys of the issuer not read", issuer=self._rules.issuer, cause=str(error))
        else:
            self._read_s = self._clock.now_s()

    async def _keys_url(self) -> str:
        if self._rules.keys_url:
            return self._rules.keys_url
        document = json.loads(await self._fetch(self._rules.issuer.rstrip("/") + DISCOVERY))
        url = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(url, str) or document.get("issuer") != self._rules.issuer:
            raise ValueError(f"the discovery document is not of issuer {self._rules.issuer}")
        try:
            require_safe_url("oidc_keys_url", url)
        except ConfigError as error:
            raise ValueError(f"the discovery document names {url[:200]!r} for the keys") from error
        return url


def public_keys(text: bytes) -> Mapping[str, Any]:
    """Return the signature keys of a JWKS document, by key id.

    Raises:
        ValueError: The text is not a JWKS document.
    """
    document = json.loads(text)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the answer is no JWKS document")  # noqa: TRY004  like what JSON raises
    keys: dict[str, Any] = {}
    for entry in listed[:KEYS_MAX]:
        if not isinstance(entry, dict):
            continue
        # All relevant members of a key are texts; ignore the others.
        texts = {name: text for name, text in entry.items() if isinstance(text, str)}
        if texts.get("kty") not in KEY_KINDS:
            continue
        if entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(texts).key
        except (jwt.PyJWTError, ValueError, TypeError):
            continue  # Skip an invalid key; tokens that it signed are rejected.
        if not isinstance(key, RSAPublicKey) or key.key_size >= RSA_BITS_MIN:
            keys[texts.get("kid", "")] = key
    return keys


# --------------------------------------------------------------------------------------- The tokens


class OidcTokens:
    """Authenticates callers by tokens of an issuer."""

    def __init__(self, rules: OidcRules, keys: IssuerKeys) -> None:
        self._rules, self._keys = rules, keys

    @classmethod
    def of(cls, access: AccessSettings, clock: Clock, log: Log) -> "OidcTokens | None":
        """Create the authentication of the settings; None: no issuer is configured.

        Raises:
            ConfigError: The settings are inconsistent.
        """
        rules = OidcRules.of(access)
        if rules is None:
            return None
        return cls(rules, IssuerKeys(rules, bounded_fetch(access.oidc_authorities), clock, log))

    async def caller(self, token: bytes) -> Caller:
        """Return the caller that a token identifies.

        Raises:
            UnauthorizedError: The token is not accepted; the message gives the reason.
            UnavailableError: The keys of the issuer are not available.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise UnauthorizedError(f"the token has more than {TOKEN_BYTES_MAX} bytes")
        try:
            claims = await self._claims(token)
        except (jwt.PyJWTError, RecursionError) as error:
            raise UnauthorizedError(f"the token is not accepted: {error}") from error
        self._require_access_token(token, claims)
        self._require_short_life(claims)
        subject = claims["sub"]
        if not subject or len(subject) > SUBJECT_MAX or not subject.isprintable():
            raise UnauthorizedError("the token is not accepted: its claim sub names no caller")
        return Caller(f"oidc:{subject}", self._rules.grants_of(claims))

    async def check_id_token(self, token: str, client: str, nonce: str) -> None:
        """Check that an ID token was issued to a client for one sign-in.

        Args:
            token: The ID token.
            client: Id of the client.
            nonce: Value that the sign-in was begun with.

        Raises:
            UnauthorizedError: The token is another one.
            UnavailableError: The keys of the issuer are not available.
        """
        try:
            claims = await self._claims(token.encode(), client)
        except (jwt.PyJWTError, RecursionError) as error:
            raise UnauthorizedError(f"the ID token is not accepted: {error}") from error
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if len(audience) > 1 and claims.get("azp") != client:
            raise UnauthorizedError("the ID token is not accepted: it is of another client")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise UnauthorizedError("the ID token is not accepted: it is of another sign-in")

    async def _claims(self, token: bytes, audience: str = "") -> Mapping[str, Any]:
        """Return the claims of a token after verifying them and the signature.

        Args:
            token: The token.
            audience: Required audience; empty: that of access tokens.

        Raises:
            PyJWTError: A claim or the signature is invalid.
        """
        head = jwt.get_unverified_header(token)
        if head.get("alg") not in self._rules.algorithms:
            raise jwt.InvalidAlgorithmError(
                f"its signature is of another kind than {', '.join(self._rules.algorithms)}"
            )
        key = await self._keys.key(str(head.get("kid", ""))[:TEXTS_MAX])
        if key is None:
            raise jwt.InvalidKeyError("the issuer has no such key")
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(self._rules.algorithms),
                audience=audience or self._rules.audience,
                issuer=self._rules.issuer,
                leeway=LEEWAY_S,
                options={"require": list(REQUIRED)},
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise jwt.InvalidTokenError("it has a claim of the wrong form") from error
        return claims

    def _require_access_token(self, token: bytes, claims: Mapping[str, Any]) -> None:
        """Reject ID tokens and other tokens that are not access tokens.

        Raises:
            UnauthorizedError: The token declares another kind, or does not declare itself an
                access token and has the claims of an ID token.
        """
        head_type = str(jwt.get_unverified_header(token).get("typ", "")).lower()
        claim_type = str(claims.get("typ", "")).lower()
        if head_type not in ACCESS_TYPES | UNTYPED or claim_type not in ACCESS_CLAIMS | {""}:
            kind = claim_type or head_type
            raise UnauthorizedError(
                f"the token is not accepted: it is of type {kind[:40]!r}, expected an access token"
            )
        if head_type in ACCESS_TYPES or claim_type:
            return
        marks = [name for name in ID_TOKEN_CLAIMS if name in claims]
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if marks or (claims.get("azp") == self._rules.audience and len(audience) == 1):
            why = f"it has the claim {marks[0]}" if marks else "aud and azp name the same client"
            raise UnauthorizedError(
                f"the token is not accepted: {why}, as an ID token does; send the access token"
            )

    def _require_short_life(self, claims: Mapping[str, Any]) -> None:
        most_s, life_s = self._rules.life_max_s, float(claims["exp"]) - float(claims["iat"])
        if life_s > most_s:
            raise UnauthorizedError(
                f"the token is not accepted: it is valid for {life_s:.0f} s, expected at most"
                f" {most_s:.0f} s (access.oidc_life_max_s)"
            )
