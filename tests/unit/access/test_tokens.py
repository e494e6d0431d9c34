"""The file of named tokens: what is kept, who is known by it, and how it changes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError, RefusedError, RequestError
from neve.gateway.access.callers import Role
from neve.gateway.access.tokens import (
    LOOK_INTERVAL_S,
    PREFIX,
    KnownTokens,
    NamedToken,
    TokenFile,
    digest_of,
    parse_tokens,
    tokens_text,
)

NOW_S = 1_000_000.0


@dataclass
class Watched:
    """A gateway's view of a token file, with a clock that is moved by hand."""

    file: TokenFile
    at_s: float = NOW_S
    log: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = KnownTokens(
            self.file.path, self, lambda event, **facts: self.log.append((event, facts))
        )

    def now_s(self) -> float:
        return self.at_s

    def name(self, token: str) -> str | None:
        """Return whose token it is, a moment later than before."""
        self.at_s += LOOK_INTERVAL_S
        caller = self.known.caller(token.encode())
        return None if caller is None else caller.name


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(TokenFile(tmp_path / "tokens.json"))


def create(watched: Watched, name: str, *grants: str, life_s: float | None = None) -> str:
    _, token = watched.file.create(name, grants or ("read",), now_s=watched.at_s, life_s=life_s)
    return token


def test_only_the_digest_is_kept_and_only_the_owner_reads_it(watched: Watched) -> None:
    token = create(watched, "ci")
    text = watched.file.path.read_text()

    assert token.startswith(PREFIX)
    assert len(token) - len(PREFIX) == 43, "256 bits"
    assert token not in text
    assert digest_of(token.encode()) in text
    assert watched.file.path.stat().st_mode & 0o777 == 0o600


def test_a_token_comes_and_goes_without_a_restart(watched: Watched) -> None:
    assert watched.name("neve_nothing") is None

    token = create(watched, "ci", "write:events-*")
    assert watched.name(token) == "ci"
    caller = watched.known.caller(token.encode())
    assert caller is not None
    assert caller.may(Role.WRITE, "events-eu")
    assert not caller.may(Role.READ, "users")

    watched.file.revoke("ci")
    assert watched.name(token) is None


def test_a_new_token_works_at_once(watched: Watched) -> None:
    assert watched.name("neve_nothing") is None
    token = create(watched, "ci")
    caller = watched.known.caller(token.encode())
    assert caller is not None, "no time has passed since the file was looked at"
    assert caller.name == "ci"


def test_wrong_tokens_make_the_gateway_read_no_file(watched: Watched) -> None:
    """A file that cannot be used is read again once per second, whatever callers send."""
    assert watched.name(create(watched, "ci")) == "ci"
    watched.file.path.write_text("{")
    for _ in range(3):
        assert watched.known.caller(b"neve_wrong") is None
    assert [event for event, _ in watched.log] == ["tokens read", "tokens not read"]

    # A look that reads it would find it whole: the signature is that of the faulty file.
    faulty = watched.file.path.stat()
    watched.file.path.write_text("7")
    os.utime(watched.file.path, ns=(faulty.st_atime_ns, faulty.st_mtime_ns))
    assert watched.known.caller(b"neve_wrong") is None
    assert len(watched.log) == 2
    assert watched.name("neve_wrong") is None
    assert "has another format" in str(watched.log[-1][1]["cause"])


def test_a_token_ends_when_it_expires(watched: Watched) -> None:
    token = create(watched, "ci", life_s=60)
    assert watched.name(token) == "ci"
    watched.at_s = NOW_S + 60 - LOOK_INTERVAL_S
    assert watched.name(token) is None


def test_the_old_token_lives_on_for_the_overlap_only(watched: Watched) -> None:
    old = create(watched, "ci", "compact", life_s=1000)
    entry, fresh = watched.file.rotate("ci", now_s=watched.at_s, overlap_s=60)

    assert (watched.name(old), watched.name(fresh)) == ("ci", "ci")
    assert entry.grants == ("compact",)
    assert entry.expires_at_s == NOW_S + 1000
    watched.at_s = NOW_S + 60
    assert (watched.name(old), watched.name(fresh)) == (None, "ci")


def test_an_overlap_makes_no_token_live_longer(watched: Watched) -> None:
    old = create(watched, "ci", life_s=10)
    watched.file.rotate("ci", now_s=watched.at_s, overlap_s=1000)
    watched.at_s = NOW_S + 10
    assert watched.name(old) is None


def test_one_of_two_tokens_can_be_revoked(watched: Watched) -> None:
    old = create(watched, "ci")
    _, fresh = watched.file.rotate("ci", now_s=watched.at_s, overlap_s=1000)
    watched.file.revoke("ci", digest_of(old.encode())[:8])

    assert (watched.name(old), watched.name(fresh)) == (None, "ci")


def test_a_file_that_cannot_be_read_changes_nothing_and_is_told(watched: Watched) -> None:
    token = create(watched, "ci")
    assert watched.name(token) == "ci"
    whole = watched.file.path.read_text()

    watched.file.path.write_text("{")
    assert watched.name(token) == "ci"
    assert watched.name(token) == "ci"
    assert [event for event, _ in watched.log] == ["tokens read", "tokens not read"]

    watched.file.path.write_text(whole)
    assert watched.name(token) == "ci"
    assert watched.log[-1][0] == "tokens read"


def test_a_file_that_was_taken_away_has_no_tokens(watched: Watched) -> None:
    token = create(watched, "ci")
    assert watched.name(token) == "ci"
    watched.file.path.unlink()
    assert watched.name(token) is None


def test_a_file_that_everybody_may_write_is_not_believed(watched: Watched) -> None:
    token = create(watched, "ci")
    watched.file.path.chmod(0o666)

    assert watched.name(token) is None
    assert "chmod 600" in str(watched.log[-1][1]["cause"])


def test_a_name_is_given_once(watched: Watched) -> None:
    create(watched, "ci")
    with pytest.raises(RefusedError, match="neve token rotate ci"):
        create(watched, "ci")


@pytest.mark.parametrize("name", ["", "Ci", "gateway.token", "oidc:me", "a" * 64])
def test_a_name_is_a_label_so_that_no_other_caller_has_it(watched: Watched, name: str) -> None:
    with pytest.raises(RequestError, match="DNS label"):
        create(watched, name)


def test_what_is_not_there_cannot_be_rotated_or_revoked(watched: Watched) -> None:
    create(watched, "ci")
    with pytest.raises(RequestError, match="there are: ci"):
        watched.file.rotate("etl", now_s=NOW_S, overlap_s=0)
    with pytest.raises(RequestError, match="there are: ci"):
        watched.file.revoke("etl")
    with pytest.raises(RequestError, match="no id 'ffffffff'"):
        watched.file.revoke("ci", "ffffffff")


ENTRY = {"name": "ci", "digest": "0" * 64, "grants": ["read"], "created_at_s": 1.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "C I"}, "no DNS label"),
        ({"name": 7}, "no DNS label"),
        ({"digest": "secret"}, "64 hex digits"),
        ({"grants": "read"}, "no list of texts"),
        ({"grants": []}, "expected 1 to"),
        ({"grants": ["root"]}, "names no role"),
        ({"expires_at_s": "soon"}, "no number of seconds"),
        ({"expires_at_s": True}, "no number of seconds"),
        ({"token": "in the clear"}, "is not understood"),
    ],
)
def test_a_malformed_entry_is_named(change: dict[str, object], said: str) -> None:
    text = json.dumps({"format": 1, "tokens": [ENTRY, {**ENTRY, **change}]}).encode()
    with pytest.raises(ConfigError, match=rf"tokens.json, entry 2.*{said}"):
        parse_tokens(text, "tokens.json")


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 9999])
def test_another_file_is_no_token_file(text: bytes) -> None:
    with pytest.raises(ConfigError, match="token file"):
        parse_tokens(text, "tokens.json")


def test_a_time_that_is_no_number_ends_a_token() -> None:
    text = (
        b'{"format": 1, "tokens": [%s]}'
        % json.dumps({**ENTRY, "expires_at_s": float("nan")}).encode()
    )
    (entry,) = parse_tokens(text, "tokens.json")
    assert not entry.lives(NOW_S)


@given(
    st.lists(
        st.builds(
            NamedToken,
            name=st.from_regex(r"[a-z]{1,8}", fullmatch=True),
            digest=st.binary(max_size=8).map(digest_of),
            grants=st.sampled_from([("read",), ("write:a-*", "compact")]),
            created_at_s=st.floats(0, 1e10),
            expires_at_s=st.none() | st.floats(0, 1e10),
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read(tokens: list[NamedToken]) -> None:
    assert parse_tokens(tokens_text(tokens).encode(), "tokens.json") == tuple(tokens)
