"""Executes transactions against a keyspace: watch, read, decide, write; retry within bounds.

The same for Redis and memory, so that simulations cover the retries and unknown outcomes of
production. Randomness and sleep are injected.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from common.errors import ConflictError, MetadataError, UnavailableError
from common.metadata.changes import Applied, Confirm, Outcome, Refused, Unknown
from common.metadata.changes.protocol import (
    Decision,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Unresolved,
    Write,
)
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TableKeys
from common.metadata.keyspace import (
    INFO,
    TIME,
    Command,
    Keyspace,
    KeyspaceSession,
    LinkLostError,
    Reply,
    Send,
    StoreBusyError,
    delete,
    get,
    set_string,
)
from common.metadata.store_values import StoreHealth
from common.model.outcome import Refusal
from common.primitives import Backoff

NO_ROOM = "it was full, and changes that let it grow wait until there is room"
LOCK_AFTER_CONFLICTS = 3
"""Conflicts after which a change takes the lock."""
LOCK_LIFE_S = 3.0
"""The lock expires after this time if its holder has died."""
LOCK_PAUSE_S, LOCK_WAITS_MAX = 0.02, 150
"""How others wait for the lock. Then they continue, because `WATCH` guarantees safety."""
LOOKS_MAX = 4
"""How often one decision may ask for further reads."""

LOCK = "turn"
"""The name of the read of the lock."""

Settled = Write | NoWrite | Refusal | Unresolved


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Bounds on the tries of a change."""

    tries_max: int = 16
    """Tries of one transaction, including those after conflicts and lost connections."""
    pause_base_s: float = 0.001
    """First pause after a conflict; it doubles, and is shortened by a random part."""
    pause_max_s: float = 0.1
    lost_pause_max_s: float = 1.0
    """Longest pause after a lost connection: a fail-over takes seconds."""


@dataclass(slots=True)
class ExecutorCounts:
    """Counts since the store was opened, for metrics."""

    changes: int = 0
    tries: int = 0
    conflicts: int = 0
    lost: int = 0
    refused: int = 0
    unknown: int = 0


@dataclass(slots=True)
class ChangeTries:
    """The tries of one running change."""

    tries: int = 0
    conflicts: int = 0
    sent: bool = False
    now_s: float = 0.0
    grows: bool = False
    waits: int = 0
    """How often it has waited for the lock of another change."""
    has_lock: bool = False
    others_lock: bool = False
    full: bool = False
    """Whether the store was short of memory at the last read."""
    confirm: Confirm | None = None


class Executor:
    """Runs changes concurrently."""

    def __init__(
        self,
        keyspace: Keyspace,
        patience: RetryLimits,
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float],
    ) -> None:
        """Create an executor.

        Args:
            keyspace: The keyspace to write to.
            patience: Bounds on tries.
            sleep: Waits for a number of seconds.
            chance: Returns a random number from 0 to below 1.
        """
        self.counts = ExecutorCounts()
        self._keyspace = keyspace
        self._patience = patience
        self._sleep = sleep
        self._chance = chance

    async def run(
        self, transaction: Transaction, *, grows: bool = False, confirm: Confirm | None = None
    ) -> Outcome:
        """Execute a transaction and the transactions that follow it.

        Args:
            transaction: The first transaction.
            grows: Whether it waits while the store is short of memory.
            confirm: Called between each `WATCH` and its `EXEC`.

        Raises:
            ConflictError: A requirement changed on every try.
            UnavailableError: The store does not answer; nothing was sent.
        """
        tally = ChangeTries(grows=grows, confirm=confirm)
        self.counts.changes += 1
        following: Transaction | None = transaction
        outcome: Applied | Refused = Applied()
        while following is not None:
            settled = await self._settled(following, tally)
            if isinstance(settled, Refusal):
                self.counts.refused += 1
                return Refused(code=settled.code, reason=settled.reason, sent=tally.sent)
            if isinstance(settled, Unresolved):
                self.counts.unknown += 1
                return Unknown(reason=settled.reason)
            outcome, following = settled.outcome, settled.then
        if isinstance(outcome, Refused):
            return outcome
        return replace(outcome, tries=tally.tries, conflicts=tally.conflicts, now_s=tally.now_s)

    async def _settled(self, transaction: Transaction, tally: ChangeTries) -> Settled:
        """Settle one transaction, and release the lock that it took."""
        try:
            return await self._settle(transaction, tally)
        finally:
            if tally.has_lock:
                tally.has_lock = False
                with suppress(LinkLostError):
                    async with self._keyspace.session() as session:
                        await session.execute((delete(transaction.lock),))

    async def _take_lock(self, transaction: Transaction, tally: ChangeTries) -> None:
        """Make others wait for a transaction, unless another one has the lock."""
        with suppress(LinkLostError):
            async with self._keyspace.session() as session:
                (holder,) = await session.look((transaction.lock,), (get(transaction.lock),))
                if holder is None:
                    take = set_string(transaction.lock, 1, LOCK_LIFE_S)
                    tally.has_lock = await session.execute((take,))

    async def _wait_for_lock(self, tally: ChangeTries) -> bool:
        """Wait briefly if another change has the lock; return whether to read again."""
        if not tally.others_lock or tally.waits >= LOCK_WAITS_MAX:
            return False
        tally.waits += 1
        await self._sleep(LOCK_PAUSE_S)
        return True

    async def _settle(self, transaction: Transaction, tally: ChangeTries) -> Settled:
        """Try one transaction until it is written, already done or refused."""
        reason, busy = "", False
        for number in range(self._patience.tries_max):
            if number:
                await self._pause(number, lost=bool(reason))
            try:
                settled = await self._try_with_lock(transaction, tally)
            except LinkLostError as error:
                self.counts.lost += 1
                tally.sent |= error.sent
                reason, busy = str(error), isinstance(error, StoreBusyError)
                continue
            if settled is not None:
                return settled
            tally.conflicts += 1
            self.counts.conflicts += 1
            reason = ""
        if tally.sent:
            return Unresolved(reason or "the store was busy after an unknown outcome")
        raise self._given_up(reason, busy=busy)

    def _given_up(self, reason: str, *, busy: bool) -> MetadataError | UnavailableError:
        if busy:
            return UnavailableError(f"the metadata store refuses changes now: {reason}")
        if reason:
            return UnavailableError(f"the metadata store does not answer: {reason}")
        return ConflictError(f"conflicting changes won all {self._patience.tries_max} tries")

    async def _try_with_lock(self, transaction: Transaction, tally: ChangeTries) -> Settled | None:
        """Make one try if no other change has the lock; after conflicts, take the lock first."""
        lost_races = tally.conflicts >= LOCK_AFTER_CONFLICTS
        if transaction.takes_lock and lost_races and not tally.has_lock:
            await self._take_lock(transaction, tally)
        tally.tries += 1
        self.counts.tries += 1
        settled = await self._try(transaction, tally)
        while settled is None and await self._wait_for_lock(tally):
            settled = await self._try(transaction, tally)
        return settled

    async def _try(self, transaction: Transaction, tally: ChangeTries) -> Settled | None:
        """Make one try; None means that a watched key changed before `EXEC`."""
        async with self._keyspace.session() as session:
            decision = await self._decide(session, transaction, tally)
            if not isinstance(decision, Write):
                return decision
            if tally.grows and tally.full:
                raise StoreBusyError(NO_ROOM)
            if tally.others_lock and tally.waits < LOCK_WAITS_MAX:
                return None
            tally.others_lock = False
            if tally.confirm is not None and (refusal := await tally.confirm()) is not None:
                return refusal
            applied = await session.execute(decision.effects, durable=decision.durable)
            return decision if applied else None

    async def _decide(
        self, session: KeyspaceSession, transaction: Transaction, tally: ChangeTries
    ) -> Settled:
        """Read, decide, and read further if the decision asks for it."""
        # Only the first read, which every decision has, includes the lock.
        needs = transaction.needs
        if transaction.lock and not tally.has_lock:
            needs |= Needs((), {LOCK: get(transaction.lock)})
        replies = await _look(session, needs, tally)
        tally.others_lock = replies.pop(LOCK, None) is not None
        decision: Decision = transaction.decide(Seen(replies, tally.now_s, tally.sent))
        for _ in range(LOOKS_MAX):
            if not isinstance(decision, More):
                return decision
            replies |= await _look(session, decision.needs, tally)
            decision = decision.decide(Seen(replies, tally.now_s, tally.sent))
        raise AssertionError("a decision keeps asking for more")

    async def _pause(self, number: int, *, lost: bool) -> None:
        patience = self._patience
        highest_s = patience.lost_pause_max_s if lost else patience.pause_max_s
        backoff = Backoff(base_s=patience.pause_base_s, max_s=highest_s)
        await self._sleep(backoff.wait_s(number) * self._chance())


async def _look(session: KeyspaceSession, needs: Needs, tally: ChangeTries) -> dict[str, Reply]:
    """Watch and read; the time and the state of memory are read as well."""
    now, full, *replies = await session.look(needs.watch, (TIME, get(FULL), *needs.reads.values()))
    tally.now_s, tally.full = time_s(now), full is not None
    return dict(zip(needs.reads, replies, strict=True))


def time_s(reply: Reply) -> float:
    """Return the reply to TIME in seconds."""
    seconds, micros = reply
    return int(seconds) + int(micros) / 1_000_000


# ----------------------------------------------------------------------------------- Memory reserve
# At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
# that delete are allowed. So a string of nothing is kept, and a client that is refused deletes it:
# then reads, commits, releases and the collector go on. A key shows to all that the store was full:
# changes that let it grow wait until it has room for a new reserve and as much again. Each key has
# the first tag of its node. What lies under other tags came from another node, and is deleted.

SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""


async def keep_reserve(send: Send, tags: Sequence[str], size_max_bytes: int) -> None:
    """Set at most this memory aside if there is room for it twice; then adds go on, too."""
    reserve, full = RESERVE + tags[0], FULL + tags[0]
    strays = [delete(RESERVE + tag, FULL + tag) for tag in tags[1:]]
    info, is_full, present, *_ = await send([INFO, ("EXISTS", full), ("STRLEN", reserve), *strays])
    if isinstance(present, Exception):
        return  # It starts, or has its keys elsewhere by now: the next round keeps it.
    health = StoreHealth.of_info(info, full=is_full == 1, replicas_wanted=0)
    wanted = min(size_max_bytes, health.memory_max_bytes // SHARE_MAX)
    room = health.memory_max_bytes - health.memory_bytes + present
    if not wanted and (present or health.full):
        await send([delete(reserve, full)])
    elif wanted and (present != wanted or health.full) and room >= 2 * wanted:
        # The old one goes first: it may be larger. The key is the last to go, so that no change
        # grows into what is about to be set aside.
        fill: Command = ("SETRANGE", reserve, wanted - 1, b"\0")
        await send([delete(reserve), fill, delete(full)])


async def give_back(send: Send, tag: str, table_ids: Iterable[str]) -> None:
    """Make room in a Redis that is full: shorten streams of its tables, then drop the reserve."""
    trims = [
        ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
        for keys in map(TableKeys, table_ids)
        for stream in (keys.history, keys.changes)
    ]
    await send([*trims, delete(RESERVE + tag), set_string(FULL + tag, 1)])
