"""All bounds and timeouts of the core, as one frozen value.

Operators set some of them through `common.settings`; these have the name and the default of the
setting. The others bound memory and the length of a turn; their defaults should not need a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from common.settings import CoordinatorSettings, GroupSettings
from common.windows import WindowRule

_DEFAULTS = CoordinatorSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and timeouts. A pause doubles from its base up to `backoff_max_s`."""

    queue_bytes_max: int = _DEFAULTS.queue_bytes_max
    queue_count_max: int = _DEFAULTS.queue_count_max
    ageing_per_s: float = _DEFAULTS.ageing_per_s
    running_max: int = _DEFAULTS.running_max
    """Running jobs of one group."""
    running_bytes_max: int = _DEFAULTS.running_bytes_max
    """Input bytes of all running jobs of one group; a larger job runs alone."""
    urgent_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots reserved for urgent jobs; a missing group has none."""
    fair_bands: Mapping[str, int | None] = field(default_factory=dict)
    """Group → points within which tables take turns, None: always; a missing group has the
    default."""
    volume_running_max: int = _DEFAULTS.volume_running_max
    """Running jobs of one volume; 0 means no limit."""
    volume_weight_max: int = _DEFAULTS.volume_weight_max
    """Running jobs of one volume and weight (`queue.admission.job_weight`); 0 means no limit."""

    silence_max_s: float = _DEFAULTS.silence_max_s
    """A compactor that has been silent for so long is considered dead."""
    stall_max_s: float = 5.0
    """A longer gap between turns is a stall of the coordinator, not a silence of compactors."""
    lost_answer_beats: int = _DEFAULTS.lost_answer_beats
    """An attempt is lost after this many consecutive heartbeats that do not list it."""
    unlisted_max_s: float = 5.0
    """It must also be missing for this long, so that repeated heartbeats do not end it."""
    adopt_grace_s: float = _DEFAULTS.adopt_grace_s
    """Time within which a compactor must list an attempt that only the store knows."""
    doubt_max_s: float = 6.0
    """Time after which a reservation with an unknown outcome is released."""
    release_retry_s: float = 5.0
    """Time after which an unanswered release is requested again."""
    take_wait_max_s: float = 120.0
    """Time after which a waiting take is answered with no job."""

    backoff_base_s: float = _DEFAULTS.backoff_base_s
    backoff_max_s: float = _DEFAULTS.backoff_max_s
    cancel_pause_s: float = _DEFAULTS.backoff_max_s
    """How long the inputs of a cancelled job are not compacted."""
    refusal_base_s: float = 0.05
    """Pause after the second refusal of a job; the first refusal causes no pause."""
    refusal_max_s: float = 10.0
    quarantine_failures: int = _DEFAULTS.quarantine_failures
    class_failures: int = 3
    """A table is paused after this many failures of one error class over different inputs."""

    deferral_max_s: float = _DEFAULTS.deferral_max_s
    overload_after_s: float = _DEFAULTS.overload_after_s
    """A group whose queue has been full for so long is overloaded."""
    drained_fraction: float = 0.5
    """Deferred tablets are replanned when the fill level of a queue is below this fraction."""
    replans_per_turn_max: int = 64
    """Tablets replanned in one turn because they are due or a queue has room."""

    deferrals_max: int = 200_000
    """Deferred tablets per group; the full scan finds the dropped ones again."""
    last_plans_max: int = 100_000
    """Tablets whose last plan is remembered, for `explain`."""
    settled_max: int = 20_000
    """Ended attempts that are remembered, to recognise stragglers."""
    story_entries_max: int = 64
    """Entries in the story of one tablet."""
    story_tablets_max: int = 100_000
    """Tablets that have a story."""
    story_bytes_max: int = 64 * 1024**2
    """Memory of all stories; the tablet without events for the longest time is evicted first."""
    failures_max: int = 50_000
    """Inputs, tables and compactors whose failures are remembered."""
    group_limit_bytes_s: int = _DEFAULTS.group_limit_bytes_s
    volume_limit_bytes_s: int = _DEFAULTS.volume_limit_bytes_s
    volume_least_bytes_s: int = _DEFAULTS.volume_least_bytes_s
    volume_latency_s: float = _DEFAULTS.volume_latency_s

    takes_max: int = 10_000
    """Waiting takes of one group."""
    compactors_max: int = 10_000
    windows: Mapping[str, WindowRule] = field(default_factory=dict)
    """Group → its windows; jobs of a missing group start at any time."""
    withdrawals_max: int = 5_000
    """Queued jobs of closed windows that one tick removes."""

    @classmethod
    def of(
        cls,
        settings: CoordinatorSettings,
        *,
        beat_interval_s: float = 2.0,
        groups: Mapping[str, GroupSettings] | None = None,
    ) -> "Limits":
        """Return the limits for the settings of an operator.

        Args:
            settings: The operator's settings.
            beat_interval_s: Interval between heartbeats; some timeouts are multiples of it.
            groups: The operator's settings of groups; a missing group has the defaults.
        """
        groups = groups or {}
        patience_s = settings.lost_answer_beats * beat_interval_s
        shared = {limit.name for limit in fields(cls)} & {entry.name for entry in fields(settings)}
        return cls(
            **{name: getattr(settings, name) for name in shared},
            urgent_slots={name: group.urgent_slots for name, group in groups.items()},
            fair_bands={
                name: None if group.strict_shares else group.fair_band
                for name, group in groups.items()
            },
            windows={
                name: rule
                for name, group in groups.items()
                if (rule := WindowRule.of(group)) is not None
            },
            stall_max_s=max(5.0, 4 * settings.tick_s),
            unlisted_max_s=max(0.0, patience_s - beat_interval_s / 2),
            doubt_max_s=patience_s,
            cancel_pause_s=settings.backoff_max_s,
        )
