"""Controllers that set slots by the debt, or keep the settings.

* `debt` is the rule of Pebble, CockroachDB's storage engine: concurrency grows with debt.

      slots = least + max(files / 10, debt / 1 GiB, garbage / 0.4 · (most - least)), at most `most`

  The tablet with the most files replaces Pebble's level 0, and the debt per slot is an option.
* `static` keeps the shares of the settings, with an optional limit of slots.
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
"""Files of one tablet per additional slot."""
GARBAGE_FULL = 0.4
"""Garbage fraction at which all slots are used."""


# ------------------------------------------------------------------------------------- Debt → slots


def debt_slots(
    least: int,
    most: int,
    *,
    debt_bytes: float,
    deepest_files: int = 0,
    garbage_fraction: float = 0.0,
    step_bytes: int = GIB,
) -> int:
    """Return the number of slots for a debt, from `least` to `most`.

    Args:
        least: Slots without debt.
        most: Maximum number of slots.
        debt_bytes: Bytes of debt.
        deepest_files: Number of files of the tablet with the most files.
        garbage_fraction: Fraction of all bytes that is garbage, 0 to 1.
        step_bytes: Debt per additional slot.
    """
    if not isfinite(debt_bytes):
        return most
    of_garbage = int(garbage_fraction / GARBAGE_FULL * (most - least))
    more = max(deepest_files // FILES_STEP, int(debt_bytes // step_bytes), of_garbage)
    return min(most, least + max(0, more))


@dataclass(frozen=True, slots=True, kw_only=True)
class DebtOptions:
    """Options of the controller `debt`."""

    allowed_bytes: int = option(0, at_least=0)
    """Backlog that does not count as debt."""
    step_bytes: int = option(GIB, at_least=1)
    """Debt per additional slot."""
    min_slots: int = option(1, at_least=1)
    max_slots: int = option(0, at_least=0)
    """0: the maximum slots of all compactors in the settings."""


class DebtController:
    """Sets slots by debt, and shares and bytes per second in proportion."""

    name = "debt"

    def __init__(self, options: DebtOptions) -> None:
        self._options = options

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the decision for the current debt."""
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
    """Factory of `debt` controllers."""

    option_names = option_names(DebtOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        found = read_options(DebtOptions, "controller debt", options)
        if 0 < found.max_slots < found.min_slots:
            raise ConfigError(
                f"controller debt: option max_slots is {found.max_slots}, expected 0 or at least"
                f" min_slots, {found.min_slots}"
            )
        return DebtController(found)


# ------------------------------------------------------------------------------------- Fixed shares


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """Options of the controller `static`."""

    slots: int = option(0, at_least=0)
    """Total slots of system jobs and statistics; 0: all slots."""


class StaticController:
    """Keeps the shares of the settings, regardless of the backlog."""

    name = "static"

    def __init__(self, slots: int = 0) -> None:
        self._slots = slots or None

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the decision from the settings."""
        return ControlDecision(
            shares=readings.base_shares,
            bytes_s=readings.bytes_s_max,
            slots=self._slots,
            reasons=("the settings fix the shares",),
        )


class StaticControllers:
    """Factory of `static` controllers."""

    option_names = option_names(StaticOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        return StaticController(read_options(StaticOptions, "controller static", options).slots)
