"""The selector interface: files of a tablet in, files that a request rewrites out.

Entry point group `neve.selectors`. A selector is pure: same parameters, same choice; no clock, no
I/O, no randomness. It sees metadata only, and runs in a thread. A selector that takes too long
fails its request.

A selector may also use summaries that are stored in the files. It then has a method
`summary_names`, and receives the values that footers have under these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorParameters:
    """The inputs of a selector, for one tablet."""

    tablet: TabletId
    table: Table
    files: tuple[DataFile, ...]
    """Complete files that may hold rows of the request's range, sorted by path."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options from the request, or from the table's settings."""
    now_s: float = 0.0
    summaries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Path → name → text in the footer's key-value metadata. Names that a file lacks are left out;
    empty for a selector that uses no summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A selector's choice: paths among the given files; empty: none."""

    files: tuple[str, ...] = ()
    reason: str
    """A human-readable sentence."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Path → time at which the file was or will be chosen because of time alone.

    A table's own selector is called again at the next of these times. Files that do not
    depend on time are left out.
    """


class Selector(Protocol):
    """Chooses the files that a request rewrites in a tablet.

    A selector that uses summaries also has `summary_names(options) -> Sequence[str]`.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        ...

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files to rewrite; the options are valid."""
        ...
