"""The selector door: files of a tablet in, those that a request takes out.

Entry point group `neve.selectors`. A selector is pure: same parameters, same choice; no
clock, no I/O, no randomness. It looks at metadata only, and is run in a thread: one that
takes too long fails its request.

A selector may want summaries that stand in the files themselves: it has a method `summary_names`,
and is given the texts that footers have under these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorParameters:
    """Everything a selector may look at, for one tablet."""

    tablet: TabletId
    table: Table
    files: tuple[DataFile, ...]
    """Files that may hold rows of the request's range, by path; none is still written."""
    options: Mapping[str, str] = field(default_factory=dict)
    """As the request, or the table's settings, give them."""
    now_s: float = 0.0
    summaries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Path → name → text of the footer's key-value metadata. Names that a file lacks are left out;
    empty for a selector that wants no summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a selector takes: paths among the files it was shown, none if none is wanted."""

    files: tuple[str, ...] = ()
    reason: str
    """A sentence that a person understands."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Path → when the file came, or will come, to be chosen by time alone.

    A table's own selector is asked again at the next of these; what it says of files that
    time has no part in is left out.
    """


class Selector(Protocol):
    """Chooses the files that a request rewrites in a tablet.

    One that wants summaries has `summary_names(options) -> Sequence[str]`, too.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse options that are missing, unknown or wrong.

        Raises:
            RequestError: Names the option, and what was expected.
        """
        ...

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files to rewrite; options have been checked."""
        ...
