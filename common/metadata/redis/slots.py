"""Slots of a Redis Cluster: the one of a key, and which node has which. Pure.

key ─► what stands in its {hash tag}, or all of it ─► CRC16 ─► slot 0 … 16383 ─► a node
"""

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from common.metadata.commands import Command, Reply
from common.metadata.redis.connection import RedisAddress

SLOTS = 16_384
MARKED_SLOTS = range(0, SLOTS, 64)
"""Slots in which nodes hold what is their own: few, so that all of them can be looked into."""
KEYLESS = frozenset({"TIME", "SCAN", "INFO", "DBSIZE", "PING"})
"""Commands of the store that name no key."""


def slot_of(key: str) -> int:
    """Return the slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    hashed = tag if opened and closed and tag else key
    return binascii.crc_hqx(hashed.encode(), 0) % SLOTS


def slot_of_command(command: Command) -> int | None:
    """Return the slot of the first key of a command; None: it has no key."""
    return None if command[0] in KEYLESS else slot_of(str(command[1]))


@cache
def tag_of_slot(slot: int) -> str:
    """Return a hash tag whose keys lie in a slot."""
    return next(str(number) for number in count() if slot_of(str(number)) == slot)


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Which primary has which slots, as a node has told."""

    nodes: tuple[RedisAddress, ...]
    """All primaries that have slots, in a fixed order."""
    owners: tuple[int, ...]
    """Slot → place of its node in `nodes`; -1: no node has it."""

    def node_of(self, slot: int) -> RedisAddress | None:
        """Return the node that has a slot, or None."""
        owner = self.owners[slot]
        return None if owner < 0 else self.nodes[owner]

    def marked_slots_of(self, node: RedisAddress) -> Sequence[int]:
        """Return those of the marked slots that a node has; if it has none, its first slot."""
        place = self.nodes.index(node)
        marked = [slot for slot in MARKED_SLOTS if self.owners[slot] == place]
        return marked or [self.owners.index(place)]


def parse_slots(reply: Reply, asked: RedisAddress, template: RedisAddress) -> SlotMap:
    """Return the map in an answer to `CLUSTER SLOTS`.

    Args:
        reply: Ranges, each with its primary first.
        asked: Who has answered: a node that does not know its own address leaves it out.
        template: How to log in to each node.
    """
    found: dict[RedisAddress, list[range]] = {}
    for first, last, primary, *_ in reply:
        host, port = primary[0] or b"", int(primary[1])
        text = host.decode()
        address = RedisAddress(
            host=asked.host if text in ("", "?") else text,
            port=port or asked.port,
            username=template.username,
            password=template.password,
            tls=template.tls,
        )
        found.setdefault(address, []).append(range(int(first), int(last) + 1))
    nodes = tuple(sorted(found, key=str))
    owners = [-1] * SLOTS
    for place, node in enumerate(nodes):
        for slots in found[node]:
            owners[slots.start : slots.stop] = [place] * len(slots)
    return SlotMap(nodes, tuple(owners))
