"""The vocabulary of changes: what a transaction needs, sees and decides.

One transaction is `WATCH` → reads → decide → `MULTI … EXEC`. Its decision may request further reads
under the same watch. A change may consist of several transactions. Each transaction recognises its
own earlier success.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.metadata.changes import Applied, Refused
from common.metadata.commands import Command, Reply
from common.model.outcome import Refusal

MADE = Applied()
"""The plain result: the change was made."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The inputs of a decision: keys to watch, and reads by name."""

    watch: tuple[str, ...] = ()
    reads: Mapping[str, Command] = field(default_factory=dict)

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(self.watch + other.watch, {**self.reads, **other.reads})


@dataclass(frozen=True, slots=True)
class Seen:
    """The values read after `WATCH`, by the names of the needs."""

    replies: Mapping[str, Reply]
    now_s: float
    """The store's time (Redis `TIME`), read with the other values."""
    sent: bool = False
    """Whether an `EXEC` of this change was sent before without a known result."""

    def __getitem__(self, name: str) -> Reply:
        return self.replies[name]


@dataclass(frozen=True, slots=True)
class Write:
    """Allowed: write these effects in one MULTI, then run the next transaction, if any."""

    effects: tuple[Command, ...]
    outcome: Applied = MADE
    then: "Transaction | None" = None
    durable: bool = False
    """Whether replicas must have it before it is acknowledged."""


@dataclass(frozen=True, slots=True)
class NoWrite:
    """The mark already exists, or there is nothing to write."""

    outcome: Applied | Refused = MADE
    then: "Transaction | None" = None


@dataclass(frozen=True, slots=True)
class More:
    """Read further under the same watch, then decide on all values."""

    needs: Needs
    decide: "Decide"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An earlier `EXEC` may still take effect, and a repetition is not safe."""

    reason: str


Decision = Write | NoWrite | More | Refusal | Unresolved
Decide = Callable[[Seen], Decision]


@dataclass(frozen=True, slots=True)
class Transaction:
    """One WATCH … EXEC. Its needs alone determine the watched keys."""

    needs: Needs
    decide: Decide
    turn: str = ""
    """Key of the turn that it waits for while another change has it; empty: none."""
    takes_turn: bool = False
    """Whether it takes the turn after conflicts, so that others wait for it."""
