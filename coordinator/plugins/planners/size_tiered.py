"""The size-tiered planner: merge files of similar size.

This is the rule of the strategy of the same name in Cassandra and ScyllaDB. Files are grouped into
tiers of similar size. A tier of `min_threshold` files becomes one file of a higher tier, so each
byte is rewritten once per tier. See `tiers.py` for the parts and the differences.

If a tablet has no other work, one file at a time is rewritten alone to drop its tombstones. Such a
file keeps its live rows, so drop jobs do not replace this rewrite.

Fixed point: a job has at least two inputs and at most one output, or it rewrites one file, which is
not repeated before `tombstone_compaction_interval_s`. A tablet of n files has no work left after at
most n - 1 jobs of the first kind and n of the second, regardless of the output sizes.
"""

from collections.abc import Mapping

from common.model.job import Kind, Plan
from common.model.table import TableSettings
from common.spi.options import option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from coordinator.plugins.planners.tiers import (
    PlanDraft,
    TierOptions,
    bring_to_one,
    check_tier_options,
    is_under_way,
    pick_tiers,
    pick_tombstones,
)

_NAME = "planner size-tiered"


class SizeTieredPlanner:
    """Plans by size tiers; see the module. Keeps no state between plans."""

    option_names = option_names(TierOptions)
    setting_names = settings_of(TierOptions)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        _options(options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left.

        Raises:
            ConfigError: An option or setting is invalid.
        """
        options = _options(parameters.options, parameters.settings)
        draft = PlanDraft(parameters, options.file_limit)
        running = is_under_way(parameters.kind, parameters)
        if parameters.kind is Kind.USER:
            if running:
                draft.leave(parameters.candidates, "waits for the running jobs of the request")
            elif parameters.candidates:
                bring_to_one(draft, parameters.candidates, options.width, parameters)
            return draft.plan()
        pick_tiers(draft, parameters.candidates, options, parameters, alone=not running)
        if not draft.has_jobs and not running:
            pick_tombstones(draft, parameters.candidates, options, parameters)
        return draft.plan()


def _options(given: Mapping[str, object], settings: TableSettings | None = None) -> TierOptions:
    options = read_options(TierOptions, _NAME, given, settings)
    check_tier_options(_NAME, options)
    return options
