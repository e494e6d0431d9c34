"""Which files that nobody knows may hold the only copy of rows. Pure.

A store that has gone back in time knows neither the last commits nor the last adds, and a
collector has deleted the inputs of those commits. To delete what it does not know would
delete rows. So of an output that no key knows, each input must be accounted for:

    it is in the table, and in storage     the output is of an attempt that gave up
    it waits for deletion                  a commit that is known has replaced it
    another attempt has replaced it        by the history, or by the footer of a file that
                                           is in the table or was replaced by such a file

and an appended file must be younger than the last time at which somebody accepted that
changes were lost. (Nothing is, while nobody has.) What was replaced by a commit that is
known is waste in any case.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from neve.recovery.stored_files import FileOrigin, OutputFooter, StoredFile

CLOCKS_APART_S = 300.0
"""Most that the clocks of store and storage differ."""

Orphan = tuple[StoredFile, OutputFooter | None]


@dataclass(slots=True, kw_only=True)
class OnlyCopies:
    """What a table's keys, and its outputs, tell of the inputs of attempts."""

    held: frozenset[str]
    """Files of the table that are in storage."""
    garbage: frozenset[str]
    lost_s: float | None
    """When somebody last accepted that changes were lost; now, if nobody has done so yet."""
    _replaced: dict[str, set[str]] = field(default_factory=dict)
    """Input → the attempts that replaced it."""

    def committed(self, attempts: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Note attempts that were committed: id and inputs of each."""
        for attempt, inputs in attempts:
            for path in inputs:
                self._replaced.setdefault(path, set()).add(attempt)

    def among(self, orphans: Sequence[Orphan]) -> dict[str, str]:
        """Return those of some orphans that may be the only copy of rows → why."""
        self._trace(orphans)
        doubts = ((file.path, self._doubt(file, footer)) for file, footer in orphans)
        return {path: why for path, why in doubts if why}

    def _trace(self, orphans: Sequence[Orphan]) -> None:
        """Note the attempts behind orphans that were replaced: they were committed."""
        left = [(file, footer) for file, footer in orphans if footer is not None]
        while found := [each for each in left if each[0].path in self._replaced]:
            self.committed((footer.attempt, footer.inputs) for _, footer in found)
            left = [each for each in left if each not in found]

    def _doubt(self, file: StoredFile, footer: OutputFooter | None) -> str:
        if file.path in self._replaced or (footer is not None and not footer.rows):
            return ""
        if footer is not None:
            lost = [path for path in footer.inputs if not self._is_accounted(path, footer.attempt)]
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            return f"what became of its input {lost[0]}{more} is not known" if lost else ""
        if file.whose is not FileOrigin.APPENDED or self.lost_s is None:
            return ""
        if file.changed_s is not None and file.changed_s > self.lost_s + CLOCKS_APART_S:
            return ""
        return "it is older than the moment at which it was accepted that changes were lost"

    def _is_accounted(self, path: str, attempt: str) -> bool:
        others = self._replaced.get(path, set()) - {attempt}
        return path in self.held or path in self.garbage or bool(others)
