"""Indexes of members by key, as dictionaries of dictionaries: members keep their order."""

from typing import TypeVar

Key = TypeVar("Key")


def remove_from_index(index: dict[Key, dict[str, None]], key: Key, member: str) -> None:
    """Remove a member from an index, and its key with the last member."""
    members = index[key]
    del members[member]
    if not members:
        del index[key]
