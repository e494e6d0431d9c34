"""What an engine tells of a rewrite: how far it is, and what came of it."""

from dataclasses import dataclass, field

from common.model.file import DataFile
from common.model.outcome import DroppedRows, RowCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """How far the engine is with one attempt."""

    fraction: float
    bytes_done: int = 0
    rows_done: int = 0
    state: str = "rewriting"
    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    steps: int = 0
    """Whatever was done that the other numbers do not show; only whether it grows matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """What an engine shows of its life."""

    up: bool
    """Whether it is started; nothing can be expected of one that is being started."""
    signs: int = 0
    """Life signs heard so far. A healthy engine gives one every few seconds."""
    busy: frozenset[str] = frozenset()
    """The attempts of which tasks ran at the last life sign; others wait for a free core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What the engine has written and verified: outputs with their statistics."""

    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    kernel: str = ""
    timings_s: dict[str, float] = field(default_factory=dict)
