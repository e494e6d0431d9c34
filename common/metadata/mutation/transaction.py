"""The vocabulary of changes: what a transaction needs, saw and decides.

One transaction is `WATCH` → reads → decide → `MULTI … EXEC`. Its decision may ask to
look further under the same watch, and a change may consist of several transactions,
each of which recognises its own earlier success.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.metadata.changes import Applied, Refused
from common.metadata.commands import Command, Reply
from common.model.outcome import Refusal

MADE = Applied()
"""The plain answer: the change was made."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a decision must know: keys to watch, and reads by name."""

    watch: tuple[str, ...] = ()
    reads: Mapping[str, Command] = field(default_factory=dict)

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(self.watch + other.watch, {**self.reads, **other.reads})


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read after `WATCH`, by the names of the needs."""

    replies: Mapping[str, Reply]
    now_s: float
    """The store's time (Redis `TIME`), read among the rest."""
    sent: bool = False
    """Whether an `EXEC` of this change was sent before without a known answer."""

    def __getitem__(self, name: str) -> Reply:
        return self.replies[name]


@dataclass(frozen=True, slots=True)
class Write:
    """Allowed: these effects, in one MULTI, then perhaps the next transaction."""

    effects: tuple[Command, ...]
    outcome: Applied = MADE
    then: "Transaction | None" = None
    durable: bool = False
    """Whether replicas must have it before it is acknowledged."""


@dataclass(frozen=True, slots=True)
class NoWrite:
    """The mark is there already, or there is nothing to write."""

    outcome: Applied | Refused = MADE
    then: "Transaction | None" = None


@dataclass(frozen=True, slots=True)
class More:
    """Look further under the same watch, then decide on everything seen."""

    needs: Needs
    decide: "Decide"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An earlier `EXEC` may still land, and repeating it is not safe."""

    reason: str


Decision = Write | NoWrite | More | Refusal | Unresolved
Decide = Callable[[Seen], Decision]


@dataclass(frozen=True, slots=True)
class Transaction:
    """One WATCH … EXEC. The watch set comes from the needs alone."""

    needs: Needs
    decide: Decide
    turn: str = ""
    """Key of the turn that it waits for while another has it; empty: it waits for none."""
    takes_turn: bool = False
    """Whether it takes the turn after it has lost races; then others let it through."""
