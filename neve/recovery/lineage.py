"""Which files of a location are a table's rows, by what outputs say of their inputs. Pure.

A file that nobody replaced counts. An attempt replaces its inputs by its outputs if all
its inputs count and all its outputs were written. It did so for certain if one of its
outputs is an input of another attempt, for only committed files are. Of two that claim
one input neither counts, unless one is certain; if the input is gone, one of them was
committed, and where both did the same work it does not matter which.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from neve.recovery.footers import OutputFooter


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is left of one attempt, by the footers of its outputs."""

    id: str
    inputs: tuple[str, ...]
    request: str | None
    outputs: tuple[str, ...] | None
    """All of its outputs; None: the last one, which knows them, is gone."""
    found: tuple[str, ...]
    """Its outputs in storage, empty marks among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Which files count, and what is known of the others."""

    files: tuple[str, ...]
    """Their rows are the table's. Empty marks of commits may be among them."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Files that do not count → why."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Files whose rows are nowhere → why."""
    replaced: frozenset[str] = frozenset()
    """Inputs of the attempts that count, whether they are in storage or not."""


def attempts_of(footers: Iterable[OutputFooter]) -> list[Attempt]:
    """Return the attempts behind some outputs, by their ids."""
    grouped: dict[str, list[OutputFooter]] = {}
    for each in footers:
        grouped.setdefault(each.attempt, []).append(each)
    return [
        Attempt(
            id=attempt,
            inputs=some[0].inputs,
            request=some[0].request,
            outputs=next((each.outputs for each in some if each.outputs is not None), None),
            found=tuple(sorted(each.path for each in some)),
        )
        for attempt, some in sorted(grouped.items())
    ]


def outputs_of(attempt: Attempt) -> tuple[str, ...]:
    """Return all outputs of an attempt that are known."""
    return tuple(dict.fromkeys((*attempt.found, *(attempt.outputs or ()))))


def trace(base: Collection[str], attempts: Iterable[Attempt]) -> Lineage:
    """Return which files count.

    Args:
        base: Files in storage that count by themselves, unless they were replaced.
        attempts: Of which outputs are in storage.
    """
    return _Tracer(base, attempts).lineage()


class _Tracer:
    """Decides attempt by attempt; each after those that made its inputs."""

    def __init__(self, base: Collection[str], attempts: Iterable[Attempt]) -> None:
        self._base = {*base}
        self._attempts = {each.id: each for each in sorted(attempts, key=lambda each: each.id)}
        self._maker = {path: each for each in self._attempts.values() for path in outputs_of(each)}
        self._claims: dict[str, list[Attempt]] = {}
        for each in self._attempts.values():
            for path in each.inputs:
                self._claims.setdefault(path, []).append(each)
        self._refused: dict[str, str] = {}
        self._stored = {*self._base, *(p for each in self._attempts.values() for p in each.found)}

    def lineage(self) -> Lineage:
        """Return the answer."""
        accepted = [each for each in self._in_order() if self._accept(each)]
        gone = {path for each in accepted for path in each.inputs}
        made = {path for each in accepted for path in outputs_of(each)}
        files = (self._base | made) - gone
        left = dict.fromkeys(gone & self._stored, "it was replaced")
        for each in self._attempts.values():
            if each.id in self._refused:
                left |= dict.fromkeys(each.found, self._refused[each.id])
        lost = dict.fromkeys(made - gone - self._stored, "a committed output is not in storage")
        lost |= self._contested(gone)
        counting = tuple(sorted(files & self._stored))
        return Lineage(files=counting, left=left, lost=lost, replaced=frozenset(gone))

    def _contested(self, gone: set[str]) -> dict[str, str]:
        """Return inputs that are gone although no attempt over them counts."""
        return {
            path: "it is not in storage, and which of its replacements counts cannot be told: "
            + ", ".join(each.found[0] for each in claims)
            for path, claims in self._claims.items()
            if path not in gone and path not in self._stored
        }

    def _in_order(self) -> list[Attempt]:
        """Return the attempts so that makers of inputs come first."""
        order: dict[str, Attempt] = {}
        for first in self._attempts.values():
            stack = [first]
            while stack:
                each = stack[-1]
                makers = (self._maker.get(path) for path in each.inputs)
                before = [m for m in makers if m and m.id not in order and m not in stack]
                if before:
                    stack += before
                else:
                    order.setdefault(stack.pop().id, each)
        return list(order.values())

    def _accept(self, attempt: Attempt) -> bool:
        reason = None if self._is_certain(attempt) else self._doubt(attempt)
        if reason is not None:
            self._refused[attempt.id] = reason
        return reason is None

    def _is_certain(self, attempt: Attempt) -> bool:
        return any(path in self._claims for path in outputs_of(attempt))

    def _doubt(self, attempt: Attempt) -> str | None:
        """Return why an attempt does not count, or None."""
        for path in attempt.inputs:
            maker = self._maker.get(path)
            if maker is not None and maker.id in self._refused:
                return f"its input {path} does not count"
        if not self._is_whole(attempt):
            return "not all outputs of its attempt were written"
        rivals = self._rivals(attempt)
        if any(self._is_certain(each) for each in rivals):
            return "another attempt over the same input was committed"
        if rivals and not self._is_first_of_equals(attempt, rivals):
            return f"{rivals[0].found[0]} claims the same input"
        return None

    def _is_whole(self, attempt: Attempt) -> bool:
        return attempt.outputs is not None and {*attempt.outputs} <= {*attempt.found}

    def _rivals(self, attempt: Attempt) -> list[Attempt]:
        found = {each.id: each for path in attempt.inputs for each in self._claims[path]}
        return [each for each in found.values() if each is not attempt and self._is_whole(each)]

    def _is_first_of_equals(self, attempt: Attempt, rivals: list[Attempt]) -> bool:
        """Return whether an input is gone, and this is the first of those that did the same."""
        gone = any(path not in self._stored for path in attempt.inputs)
        work = ({*attempt.inputs}, attempt.request)
        equal = all(({*each.inputs}, each.request) == work for each in rivals)
        return gone and equal and all(attempt.id < each.id for each in rivals)
