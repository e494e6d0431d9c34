"""Reads of streams that wait. One command reads streams of one slot only, which is one table's.

For few slots each has a read that waits, on a connection of its own. When one is answered, the
others go on waiting: the next caller, after the same positions, finds them again, so no
connection is given up with each answer. For many slots all streams of a node are looked at in one
round trip, again and again. One Redis is one slot.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from common.metadata.commands import Command, Reply
from common.metadata.keyspace import LinkLostError, StreamEntry
from common.metadata.redis.connection import ReplyError
from common.metadata.redis.nodes import Node, Nodes

BLOCKED_MAX = 32
"""Most slots with a read that waits on a connection of its own."""
POLL_S = 0.1
"""Pause between two looks at more slots than that."""
POLL_STREAMS_PER_S = 20_000
"""Most streams that are looked at in a second, however many there are."""

_Key = tuple[Node, tuple[tuple[str, str], ...], int]
"""A read that waits: at which node, for which streams after which positions, how many entries."""
_Entries = Mapping[str, Sequence[StreamEntry]]


class StreamReads:
    """All reads of streams of a store."""

    def __init__(self, nodes: Nodes, timeout_s: float, translate: Callable[..., Exception]) -> None:
        """Read from `nodes`; `translate` makes our error of an answer and its command."""
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._translate = translate
        self._waiting: dict[_Key, asyncio.Task[_Entries]] = {}

    async def wait(self, after: Mapping[str, str], count: int, block_s: float) -> _Entries:
        """Return the entries that come first; none if there are none in time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + block_s
        slots: dict[int, dict[str, str]] = {}
        for key, position in after.items():
            slots.setdefault(self._nodes.slot_of(key), {})[key] = position
        pause_s = max(POLL_S, len(slots) / POLL_STREAMS_PER_S)
        while True:
            left_s = until_s - loop.time()
            if left_s > 0 and len(slots) <= BLOCKED_MAX:
                entries = await self._first(slots, count, left_s)
            else:
                entries = await self._look(slots, count)
                if not entries and left_s > 0:
                    await asyncio.sleep(min(pause_s, left_s))
            if entries or loop.time() >= until_s:
                return entries

    async def _look(self, slots: Mapping[int, Mapping[str, str]], count: int) -> _Entries:
        """Return the entries that are there, by one round trip to each node."""
        commands: dict[Node, list[Command]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            commands.setdefault(node, []).append(_stream_read(after, count, 0.0))
        tasks = [
            asyncio.ensure_future(self._read(node, mine, 0.0)) for node, mine in commands.items()
        ]
        await asyncio.wait(tasks)
        return _results(tasks)

    async def _first(
        self, slots: Mapping[int, Mapping[str, str]], count: int, block_s: float
    ) -> _Entries:
        """Return the entries that come first, by reads that wait."""
        own: dict[_Key, asyncio.Task[_Entries]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            key = (node, tuple(after.items()), count)
            task = self._waiting.get(key)
            if task is None:
                command = _stream_read(after, count, block_s)
                task = asyncio.ensure_future(self._read(node, [command], block_s))
                task.add_done_callback(_take_error)
                self._waiting[key] = task
            own[key] = task
        done, _ = await asyncio.wait(
            own.values(), timeout=block_s, return_when=asyncio.FIRST_COMPLETED
        )
        for key in [key for key, task in own.items() if task in done]:
            self._waiting.pop(key, None)
        return _results(done)

    async def _read(self, node: Node, commands: Sequence[Command], block_s: float) -> _Entries:
        try:
            async with node.lend(extra=True) as link:
                replies = await link.exchange(commands, block_s + self._timeout_s)
                return _joined(map(self._entries, replies))
        except LinkLostError as error:
            await self._nodes.doubt(node, error)
            raise

    def _entries(self, reply: Reply) -> _Entries:
        """Return the entries in an answer; raises one that is an error."""
        if isinstance(reply, ReplyError):
            raise self._translate(reply, ("XREAD", "one of several streams"))
        return {
            key.decode(): [_entry(*pair) for pair in pairs] for key, pairs in (reply or {}).items()
        }

    async def close(self) -> None:
        """End all reads."""
        tasks = [*self._waiting.values()]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _stream_read(after: Mapping[str, str], count: int, block_s: float) -> Command:
    # Nought would wait for ever.
    block = ("BLOCK", max(1, int(block_s * 1000))) if block_s > 0 else ()
    return ("XREAD", "COUNT", count, *block, "STREAMS", *after, *after.values())


def _entry(position: bytes, words: list[bytes]) -> StreamEntry:
    return position.decode(), dict(zip(words[::2], words[1::2], strict=True))


def _results(done: Iterable[asyncio.Task[_Entries]]) -> _Entries:
    """Return what some reads have brought; if none has, raise the error of one.

    A node that is lost does not silence tables of other nodes.
    """
    ended = list(done)
    entries = _joined(task.result() for task in ended if task.exception() is None)
    if not entries:
        for task in ended:
            task.result()
    return entries


def _joined(some: Iterable[_Entries]) -> _Entries:
    return {key: stream for entries in some for key, stream in entries.items()}


def _take_error(task: asyncio.Task[_Entries]) -> None:
    """Take an error that perhaps no caller waits for any more."""
    if not task.cancelled():
        task.exception()
