"""Tokens of an issuer: which are accepted, what they grant, and how keys change."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.access_settings import AccessSettings
from common.errors import ConfigError, UnavailableError
from neve.client.errors import ForbiddenError, UnauthorizedError
from neve.gateway.access.callers import Caller, Role
from neve.gateway.access.oidc import (
    ANSWER_BYTES_MAX,
    FRESH_S,
    STALE_MAX_S,
    TOKEN_BYTES_MAX,
    UNKNOWN_KEY_PAUSE_S,
    OidcRules,
    OidcTokens,
    public_keys,
)
from neve.gateway.problems import UnauthorizedError as NotAccepted
from tests.support.gateway import serving
from tests.support.issuer import AUDIENCE, Issuer, running_issuer


def settings(issuer: Issuer, **changed: Any) -> AccessSettings:
    access = AccessSettings(
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_grants=("lake-readers=read", "etl=write:events-*", "etl=compact:events-*"),
    )
    return replace(access, **changed)


@dataclass
class Door:
    """What recognises tokens of an issuer, with a clock that is moved by hand."""

    issuer: Issuer
    changed: dict[str, Any] = field(default_factory=dict)
    at_s: float = 1000.0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = OidcTokens.of(
            settings(self.issuer, **self.changed), self, lambda event, **_: self.log.append(event)
        )
        assert made is not None
        self._tokens = made

    def now_s(self) -> float:
        return self.at_s

    def caller(self, token: str) -> Caller:
        return asyncio.run(self._tokens.caller(token.encode()))

    def refuses(self, token: str, why: str) -> None:
        with pytest.raises(NotAccepted, match=why):
            self.caller(token)


@pytest.fixture(scope="module")
def server() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        issuer.add_ec("curve")
        issuer.add_rsa("short", bits=1024)
        issuer.add_rsa("sealing", use="enc")
        yield issuer


@pytest.fixture
def door(server: Issuer) -> Iterator[Door]:
    keys = list(server.keys)
    yield Door(server)
    server.keys[:], server.up, server.padding, server.issuer = keys, True, 0, None
    server.redirect = ""
    server.asked.clear()


def test_a_sound_token_tells_who_and_what(door: Door) -> None:
    caller = door.caller(door.issuer.token())
    assert caller.name == "oidc:ada"
    assert caller.rights_text == "read"


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["etl"], "write:events-*, compact:events-*"),
        (["etl", "lake-readers", "etl"], "write:events-*, compact:events-*, read"),
        ("lake-readers", "read"),
        ("other lake-readers", "none"),
        ("not etl", "none"),
        (["nobody-knows"], "none"),
        ([], "none"),
        (None, "none"),
        ([7, {"etl": 1}, None], "none"),
        ({"etl": True}, "none"),
    ],
)
def test_the_claim_grants_what_the_settings_say(roles: object, rights: str, door: Door) -> None:
    assert door.caller(door.issuer.token(roles=roles)).rights_text == rights


def test_a_claim_may_lie_in_objects(server: Issuer, door: Door) -> None:
    deep = Door(server, {"oidc_claim": "realm_access.roles"})
    caller = deep.caller(server.token(realm_access={"roles": ["lake-readers"]}))

    assert caller.may(Role.READ)
    assert not deep.caller(server.token(realm_access="lake-readers")).grants


def test_a_claim_may_be_named_by_a_url(server: Issuer, door: Door) -> None:
    name = "https://example.com/roles"
    flat = Door(server, {"oidc_claim": name})
    assert flat.caller(server.token(**{name: ["lake-readers"]})).may(Role.READ)
    assert not flat.caller(server.token(roles=["lake-readers"])).grants

    deep = Door(server, {"oidc_claim": "https://example.com/app.roles"})
    inside = {"https://example.com/app": {"roles": ["lake-readers"]}}
    assert deep.caller(server.token(**inside)).may(Role.READ)


@pytest.mark.parametrize(
    ("head_type", "claims", "why"),
    [
        ("JWT", {"nonce": "n"}, "claim nonce"),
        ("JWT", {"at_hash": "x"}, "claim at_hash"),
        ("JWT", {"azp": AUDIENCE}, "name the same client"),
        ("JWT", {"azp": AUDIENCE, "aud": [AUDIENCE]}, "name the same client"),
        ("JWT", {"typ": "ID"}, "type 'id'"),
        ("JWT", {"typ": "Refresh"}, "type 'refresh'"),
        ("at+jwt", {"typ": "ID"}, "type 'id'"),
        ("logout+jwt", {}, r"type 'logout\+jwt'"),
        ("JWT", {"azp": "a-client"}, ""),
        ("JWT", {"azp": AUDIENCE, "aud": [AUDIENCE, "account"]}, ""),
        ("at+jwt", {"nonce": "n"}, ""),
        ("JWT", {"typ": "Bearer", "nonce": "n", "azp": AUDIENCE}, ""),
    ],
)
def test_an_id_token_is_no_access_token(
    head_type: str, claims: dict[str, Any], why: str, door: Door
) -> None:
    token = door.issuer.token(head_type=head_type, **claims)
    if why:
        door.refuses(token, why)
    else:
        assert door.caller(token).name == "oidc:ada"


def test_a_token_must_not_live_too_long(server: Issuer, door: Door) -> None:
    door.refuses(server.token(exp=NOW_S + 86_400 * 365), "oidc_life_max_s")
    patient = Door(server, {"oidc_life_max_s": 86_400.0 * 366})
    assert patient.caller(server.token(exp=NOW_S + 86_400 * 365)).name == "oidc:ada"


@pytest.mark.parametrize("name", ["kty", "use", "kid", "alg", "n", "e", "key_ops", "x5c"])
@pytest.mark.parametrize("value", [[], {}, 7, None, True, [["sig"]], "\ud800"])
def test_keys_of_any_form_are_read_or_left_out(name: str, value: object, server: Issuer) -> None:
    odd = {**server.keys[0], "kid": "odd", name: value}
    found = public_keys(json.dumps({"keys": [odd, server.keys[0]]}).encode())
    assert "one" in found


def test_a_head_that_is_nested_too_deeply_is_refused(door: Door) -> None:
    door.refuses(f"{base64.urlsafe_b64encode(b'[' * 9000).decode()}.e30.e30", "not accepted")


def test_a_curve_signs_as_well(door: Door) -> None:
    assert door.caller(door.issuer.token("curve", "ES256")).name == "oidc:ada"


NOW_S = int(time.time())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"aud": "another-service"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"exp": NOW_S - 3600}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"exp": "soon"}, "not accepted"),
        ({"exp": [1]}, "not accepted"),
        ({"nbf": NOW_S + 3600}, "not yet valid"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "names no caller"),
        ({"sub": "a\nb"}, "names no caller"),
        ({"sub": "a" * 256}, "names no caller"),
    ],
)
def test_a_claim_that_is_wrong_lets_nobody_in(
    changed: dict[str, Any], why: str, door: Door
) -> None:
    door.refuses(door.issuer.token(**changed), why)


def test_a_signature_is_needed(door: Door) -> None:
    none = door.issuer.forged({"alg": "none", "kid": "one"}, b"")
    door.refuses(none, "of another kind")
    door.refuses(none.replace("none", "None"), "of another kind|not accepted")
    body, _, _ = door.issuer.token().rpartition(".")
    door.refuses(f"{body}.", "not accepted")
    door.refuses(f"{body}.{'A' * 342}", "not accepted")


def test_a_public_key_is_no_secret(door: Door) -> None:
    public = door.issuer.private["one"].public_key()
    for form in (Encoding.PEM, Encoding.DER):
        secret = public.public_bytes(form, PublicFormat.SubjectPublicKeyInfo)
        for algorithm in ("HS256", "HS384"):
            forged = door.issuer.forged({"alg": algorithm, "kid": "one"}, secret)
            door.refuses(forged, "of another kind")


def test_a_shared_secret_among_the_keys_is_left_out(door: Door) -> None:
    door.issuer.keys.append({"kty": "oct", "kid": "shared", "k": "c2VjcmV0", "alg": "HS256"})
    door.refuses(door.issuer.forged({"alg": "HS256", "kid": "shared"}, b"secret"), "another kind")
    door.refuses(door.issuer.forged({"alg": "RS256", "kid": "shared"}, b"secret"), "no such key")


@pytest.mark.parametrize("key_id", ["short", "sealing"])
def test_a_key_that_is_short_or_for_something_else_signs_nothing(key_id: str, door: Door) -> None:
    with pytest.warns() if key_id == "short" else nullcontext():
        token = door.issuer.token(key_id)
    door.refuses(token, "no such key")


def test_a_key_of_another_kind_does_not_fit(door: Door) -> None:
    forged = door.issuer.token("curve", "ES256").split(".")
    head = door.issuer.token("one").split(".")[0]
    door.refuses(".".join([head, *forged[1:]]), "not accepted")


@pytest.mark.parametrize(
    "token", ["..", "a.b.c", "é.b.c", "eyJhbGciOiJSUzI1NiJ9..", "A" * TOKEN_BYTES_MAX + ".b.c"]
)
def test_what_is_no_token_is_refused(token: str, door: Door) -> None:
    door.refuses(token, "token")


def test_keys_that_are_new_are_found_and_old_ones_go(door: Door) -> None:
    old = door.issuer.token()
    assert door.caller(old).name == "oidc:ada"
    door.issuer.add_rsa("two")
    fresh = door.issuer.token("two")
    door.at_s += UNKNOWN_KEY_PAUSE_S
    assert door.caller(fresh).name == "oidc:ada"

    door.issuer.keys[:] = [key for key in door.issuer.keys if key["kid"] == "two"]
    assert door.caller(old).name == "oidc:ada", "not looked at again yet"
    door.at_s += FRESH_S + 1
    door.refuses(old, "no such key")
    assert door.caller(fresh).name == "oidc:ada"


def test_unknown_keys_do_not_make_it_ask_and_ask(door: Door) -> None:
    door.caller(door.issuer.token())
    door.issuer.asked.clear()
    door.at_s += UNKNOWN_KEY_PAUSE_S
    for number in range(20):
        forged = door.issuer.forged({"alg": "RS256", "kid": f"none-{number}"}, b"x")
        door.refuses(forged, "no such key")
    assert door.issuer.asked.count("/keys") == 1


def test_the_keys_hold_for_an_hour_while_the_issuer_is_away(door: Door) -> None:
    token = door.issuer.token()
    door.caller(token)
    door.issuer.up = False
    door.at_s += STALE_MAX_S - 1
    assert door.caller(token).name == "oidc:ada"
    assert door.log == ["keys of the issuer not read"]

    door.at_s += UNKNOWN_KEY_PAUSE_S
    with pytest.raises(UnavailableError, match="try again"):
        door.caller(token)
    door.issuer.up = True
    door.at_s += UNKNOWN_KEY_PAUSE_S
    assert door.caller(token).name == "oidc:ada"


def test_an_answer_that_is_too_long_or_goes_elsewhere_is_not_believed(door: Door) -> None:
    token = door.issuer.token()
    door.issuer.padding = ANSWER_BYTES_MAX
    with pytest.raises(UnavailableError):
        door.caller(token)
    door.issuer.padding, door.issuer.redirect = 0, f"{door.issuer.url}/keys?again"
    door.at_s += UNKNOWN_KEY_PAUSE_S
    with pytest.raises(UnavailableError):
        door.caller(token)
    door.issuer.redirect, door.issuer.issuer = "", "https://elsewhere.example"
    door.at_s += UNKNOWN_KEY_PAUSE_S
    with pytest.raises(UnavailableError):
        door.caller(token)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"oidc_issuer": "http://issuer.example"}, "expected https"),
        ({"oidc_issuer": "issuer"}, "expected https"),
        ({"oidc_keys_url": "http://issuer.example/keys"}, "oidc_keys_url"),
        ({"oidc_audience": ""}, "oidc_audience is empty"),
        ({"oidc_grants": ()}, "oidc_grants is empty"),
        ({"oidc_grants": ("read",)}, "expected text=role"),
        ({"oidc_grants": ("etl=root",)}, "names no role"),
        ({"oidc_algorithms": ("RS256", "HS256")}, "names 'HS256'"),
        ({"oidc_algorithms": ("none",)}, "names 'none'"),
    ],
)
def test_settings_that_let_in_the_wrong_or_nobody_are_refused(
    changed: dict[str, Any], said: str, server: Issuer
) -> None:
    with pytest.raises(ConfigError, match=said):
        OidcRules.of(settings(server, **changed))


def test_through_http(server: Issuer, door: Door) -> None:
    access = {
        name: getattr(settings(server), name)
        for name in ("oidc_issuer", "oidc_audience", "oidc_grants")
    }
    with serving(access=access) as gateway:
        with gateway.client(server.token()) as reader:
            assert reader.tables() == []
            with pytest.raises(ForbiddenError, match="'oidc:ada' has no right to admin"):
                reader.audit()
        with (
            gateway.client(server.token(exp=NOW_S - 3600)) as late,
            pytest.raises(UnauthorizedError, match="expired"),
        ):
            late.tables()
        with gateway.client() as admin:
            assert admin.tables() == [], "the token of the settings goes on"
