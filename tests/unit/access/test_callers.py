"""What a grant allows, by the definition of the roles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RequestError
from neve.gateway.access.callers import (
    GRANTS_MAX,
    OPERATOR,
    AuthorizedCall,
    Caller,
    Role,
    TableGrant,
    check_table,
    current_call,
    parse_grants,
    require_role,
    serve_call,
)
from neve.gateway.problems import ForbiddenError

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


def caller(*grants: str) -> Caller:
    return Caller("ci", parse_grants(grants))


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        (Role.READ, {Role.READ}),
        (Role.WRITE, {Role.READ, Role.WRITE}),
        (Role.COMPACT, {Role.READ, Role.COMPACT}),
        (Role.ADMIN, set(Role)),
    ],
)
def test_a_role_includes_what_the_table_says(granted: Role, allowed: set[Role]) -> None:
    assert {role for role in Role if TableGrant(granted).covers(role, "events")} == allowed


def test_a_pattern_covers_its_tables_and_never_the_service() -> None:
    narrow = caller("admin:events-*")

    assert narrow.may(Role.WRITE, "events-eu")
    assert not narrow.may(Role.READ, "users")
    assert not narrow.may(Role.READ, "my-events-eu")
    assert not narrow.may(Role.READ)
    assert not narrow.sees_all
    assert narrow.may_somewhere(Role.ADMIN)


def test_grants_add_up() -> None:
    both = caller("read", "write:events-*")

    assert both.may(Role.READ, "users")
    assert not both.may(Role.WRITE, "users")
    assert both.may(Role.WRITE, "events-eu")
    assert not both.may_somewhere(Role.COMPACT)


def test_two_stars_are_one() -> None:
    assert TableGrant.parse("read:**") == TableGrant(Role.READ)
    assert TableGrant.parse("read:a**b").tables == "a*b"


@given(name=NAMES, role=st.sampled_from(list(Role)))
def test_a_pattern_without_a_star_is_one_name(name: str, role: Role) -> None:
    grant = TableGrant.parse(f"{role}:{name}")

    assert grant.covers(role, name)
    assert not grant.covers(role, f"{name}x")
    assert TableGrant.parse(grant.text) == grant


@pytest.mark.parametrize(
    "text",
    ["", "root", "READ", "read:", "read:[a-z]*", "read:Events", "read:a b", "read:" + "a" * 64],
)
def test_a_grant_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="expected"):
        TableGrant.parse(text)


def test_there_are_grants_and_not_too_many() -> None:
    for texts in ([], ["read"] * (GRANTS_MAX + 1)):
        with pytest.raises(RequestError, match="expected 1 to"):
            parse_grants(texts)


def test_a_refusal_says_who_what_and_where() -> None:
    serve_call(AuthorizedCall(caller("read")))
    try:
        with pytest.raises(ForbiddenError, match=r"'ci' has no right to write on table 'events'"):
            require_role(Role.WRITE, "events")
        with pytest.raises(ForbiddenError, match="on the whole service; its grants are read"):
            require_role(Role.ADMIN, None)
    finally:
        serve_call(None)


def test_the_table_of_a_call_is_compared_with_the_role_of_its_route() -> None:
    serve_call(AuthorizedCall(caller("read", "write:events"), role=Role.WRITE))
    try:
        check_table("events")
        assert current_call().table == "events"
        with pytest.raises(ForbiddenError):
            check_table("users")
    finally:
        serve_call(None)


def test_work_that_nobody_has_called_for_is_the_operators() -> None:
    assert current_call().caller is OPERATOR
