"""Divide limits fairly among those who want to move bytes. Pure.

Max-min fair: nobody gets more while somebody who gets less could have it. Whoever
wants less than a fair part gets what it wants, and the others divide the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class Claim(Generic[S]):
    """What one attempt wants, and which limits it is under."""

    scopes: tuple[S, ...]
    wanted_bytes_s: float = UNLIMITED


def divide(limits: Mapping[S, float], claims: Mapping[str, Claim[S]]) -> dict[str, float]:
    """Return the part of each claim, in bytes/s; infinite where nothing limits it.

    The parts of a scope never add up to more than its limit. They are in the order of
    the claims, and depend on nothing but the arguments.

    Args:
        limits: Scope → bytes/s; a scope that is missing limits nothing.
        claims: By a name of the caller's.
    """
    parts: dict[str, float] = {}
    room = dict(limits)
    members: dict[S, dict[str, None]] = {scope: {} for scope in limits}
    for name, claim in claims.items():
        for scope in claim.scopes:
            if scope in members:
                members[scope][name] = None
    while open_scopes := [scope for scope, inside in members.items() if inside]:
        tightest = min(open_scopes, key=lambda scope: room[scope] / len(members[scope]))
        fair = max(0.0, room[tightest] / len(members[tightest]))
        inside = list(members[tightest])
        modest = [name for name in inside if claims[name].wanted_bytes_s < fair]
        for name in modest or inside:
            parts[name] = min(claims[name].wanted_bytes_s, fair)
            _leave(name, parts[name], claims[name].scopes, room, members)
    return {name: parts.get(name, UNLIMITED) for name in claims}


def _leave(
    name: str,
    part: float,
    scopes: Iterable[S],
    room: dict[S, float],
    members: dict[S, dict[str, None]],
) -> None:
    for scope in scopes:
        if scope in members and name in members[scope]:
            del members[scope][name]
            room[scope] -= part
