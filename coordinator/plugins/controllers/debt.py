"""Controllers that set slots by what is owed, or nothing at all.

* `debt` is the rule of Pebble, CockroachDB's storage engine: concurrency grows with debt.

      slots = least + max(files / 10, debt / 1 GiB, garbage / 0.4 · (most - least)), at most `most`

  Its level 0 is the tablet with the most files here, and a cluster's GiB of debt is a setting.
* `static` leaves everything as the settings have it: shares of classes, and no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from common.errors import ConfigError
from common.spi.controller import (
    SHARES_FULL,
    ControlDecision,
    Controller,
    ControlReadings,
    ShareClass,
)
from common.spi.options import option, option_names, read_options
from common.units import format_bytes, format_count

GIB = 1024**3
FILES_STEP = 10
"""Files of one tablet that ask for a slot more."""
GARBAGE_FULL = 0.4
"""With so large a part of garbage all slots are asked for."""


# ----------------------------------------------------------------------------------- Debt → slots


def debt_slots(
    least: int,
    most: int,
    *,
    debt_bytes: float,
    deepest_files: int = 0,
    garbage_fraction: float = 0.0,
    step_bytes: int = GIB,
) -> int:
    """Return how many slots a debt asks for, from `least` to `most`.

    Args:
        least: With no debt.
        most: With any debt.
        debt_bytes: Bytes that are owed.
        deepest_files: Files of the tablet that has the most.
        garbage_fraction: Garbage of all bytes, 0 to 1.
        step_bytes: Debt that asks for one slot more.
    """
    if not isfinite(debt_bytes):
        return most
    of_garbage = int(garbage_fraction / GARBAGE_FULL * (most - least))
    more = max(deepest_files // FILES_STEP, int(debt_bytes // step_bytes), of_garbage)
    return min(most, least + max(0, more))


@dataclass(frozen=True, slots=True, kw_only=True)
class DebtOptions:
    """Numbers of the controller `debt`."""

    allowed_bytes: int = option(0, at_least=0)
    """Backlog beyond which there is debt."""
    step_bytes: int = option(GIB, at_least=1)
    """Debt that asks for one slot more."""
    min_slots: int = option(1, at_least=1)
    max_slots: int = option(0, at_least=0)
    """0: as many as the settings let compactors have."""


class DebtController:
    """Slots by debt; shares and bytes per second in proportion."""

    name = "debt"

    def __init__(self, options: DebtOptions) -> None:
        self._options = options

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the slots that the debt asks for."""
        own = self._options
        most = max(own.min_slots, own.max_slots or readings.slots_max)
        debt = readings.backlog_bytes - own.allowed_bytes
        slots = debt_slots(
            own.min_slots,
            most,
            debt_bytes=debt,
            deepest_files=readings.deepest_files,
            garbage_fraction=readings.garbage_fraction,
            step_bytes=own.step_bytes,
        )
        part = slots / most
        owed = format_bytes(round(max(0.0, debt))) if isfinite(debt) else "not known"
        limit = readings.bytes_s_max
        return ControlDecision(
            shares={**readings.base_shares, ShareClass.SYSTEM: max(1.0, SHARES_FULL * part)},
            bytes_s=None if limit is None else limit * part,
            slots=slots,
            reasons=(f"the debt is {owed}: {slots} of {format_count(most, 'slot')}",),
        )


class DebtControllers:
    """Makes controllers by debt."""

    option_names = option_names(DebtOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        found = read_options(DebtOptions, "controller debt", options)
        if 0 < found.max_slots < found.min_slots:
            raise ConfigError(
                f"controller debt: option max_slots is {found.max_slots}, expected 0 or at least"
                f" min_slots, {found.min_slots}"
            )
        return DebtController(found)


# --------------------------------------------------------------------------------- Nothing changes


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """Numbers of the controller `static`."""

    slots: int = option(0, at_least=0)
    """Slots of system jobs and statistics in all; 0: as many as there are."""


class StaticController:
    """The shares of the settings, whatever the backlog is."""

    name = "static"

    def __init__(self, slots: int = 0) -> None:
        self._slots = slots or None

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return what the settings say."""
        return ControlDecision(
            shares=readings.base_shares,
            bytes_s=readings.bytes_s_max,
            slots=self._slots,
            reasons=("the settings fix the shares",),
        )


class StaticControllers:
    """Makes controllers that change nothing."""

    option_names = option_names(StaticOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        return StaticController(read_options(StaticOptions, "controller static", options).slots)
