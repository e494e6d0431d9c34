"""Indexes of members by a key, as dictionaries of dictionaries: members keep their order."""

from typing import TypeVar

Key = TypeVar("Key")


def remove_from_index(index: dict[Key, dict[str, None]], key: Key, member: str) -> None:
    """Take a member out of an index; a key without members is dropped."""
    members = index[key]
    del members[member]
    if not members:
        del index[key]
