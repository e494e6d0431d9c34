"""An explicit-state model of commits to a lake table: every order of events in a small world.

Attempts run the product's own rules (`common.lake.rules`) over a log that is modelled here: a
version is created only if its name is free, a checkpoint allows older versions to be deleted.
Other writers append, delete by copies and by vectors, compact, restore, change the schema, and
vacuum. Processes die, wake as zombies, requests arrive late, answers are lost or false, and Redis
forgets. After each event the head must have exactly the rows that the writers left in it, and
Névé must not have deleted a file that a version names.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from common.lake import rules as product_rules
from common.lake.source import (
    Answer,
    KeptRows,
    LakeFile,
    LakeOutput,
    Look,
    Planned,
    Sighting,
    Snapshot,
)

Deletes = tuple[int, ...]
State = frozenset[tuple[str, Deletes]]
"""Live files with their deleted positions."""


class Version(NamedTuple):
    """What one version does. `attempt`: the one that committed it."""

    adds: State
    removes: State
    attempt: str = ""
    is_schema: bool = False


class Attempt(NamedTuple):
    """An attempt. `publishing` and `step` are numbers of values of the rules."""

    name: str
    planned: int
    publishing: int
    step: int
    is_held: bool = True
    is_marked: bool = False
    is_running: bool = True
    was_released: bool = False
    noted: int = -1
    is_old: bool = False
    base: int = -1
    """Last version at its last mark."""
    tries: tuple[tuple[int, frozenset[str]], ...] = ()
    """Last version before each send, and what was written for it besides outputs."""

    @property
    def since(self) -> int:
        """Return the version above which the follower looks for it."""
        return max(self.planned, self.base)


class World(NamedTuple):
    """One state of everything."""

    versions: tuple[tuple[int, Version], ...]
    """Stored versions by number."""
    checkpoint: int
    checkpoint_state: State
    truth: frozenset[int]
    """Rows that the other writers left in the table."""
    stored: frozenset[str]
    committed: frozenset[tuple[str, int]]
    """Attempts and versions that became commits."""
    attempts: tuple[Attempt, ...]
    requests: frozenset[tuple[int, Version]]
    """Commits on their way."""
    budget: tuple[int, ...]
    schema_at: int = 0


@dataclass(frozen=True)
class Scenario:
    """How often each event may happen, and how an attempt divides its inputs.

    `division`: `one` output; `two` outputs, one for each input; `split`: the second input is in
    both; `sorted`: one output with unknown positions; `forgetful`: rows of the second input are in
    no output.
    """

    budget: Mapping[str, int]
    division: str = "one"
    attempts: int = 1
    first_deletes: Deletes = ()
    """Deleted positions of the second file at the beginning."""
    depth_max: int = 40


@dataclass(frozen=True)
class Model:
    """Without faults, the model of the product.

    Attributes:
        rules: The module, or one with a planted fault.
        faults: Guards of the log, the collector and the follower that are left out.
    """

    scenario: Scenario
    rules: Any = product_rules
    faults: frozenset[str] = frozenset()


class ViolationError(Exception):
    """A world that must not be; with the events that led to it."""


EVENTS = (
    "append", "copy", "vector", "compact", "restore", "schema", "checkpoint", "clean", "vacuum",
    "death", "release", "late", "lost", "false", "redis", "day",
    "position", "equality", "upsert", "rollback", "expire", "branch", "put_back", "orphans",
)  # fmt: skip
ROWS: dict[str, tuple[int, ...]] = {"a": (0, 1), "b": (2, 3)}
"""Rows of each file. Names of later files determine their rows."""
TABLE = "table"


def without(text: str, *more: str) -> Any:
    """Return the rules with pieces of their source replaced: a text, its replacement, and so on."""
    texts = (text, *more)
    source = inspect.getsource(product_rules)
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    module = types.ModuleType("faulty_rules")
    sys.modules["faulty_rules"] = module  # dataclasses look their module up by its name
    exec(compile(source, "faulty_rules", "exec"), module.__dict__)
    return module


# ---------------------------------------------------------------------------------------------- Log


@cache
def rows_of(state: State) -> tuple[int, ...]:
    """Return the rows of live files, doubled ones twice."""
    return tuple(
        sorted(
            row
            for path, deletes in state
            for position, row in enumerate(ROWS[path])
            if position not in deletes
        )
    )


def applied(state: State, version: Version) -> State:
    """Return the state after a version. A remove with other deletes removes nothing."""
    return (state - version.removes) | version.adds


@cache
def states_of(
    versions: tuple[tuple[int, Version], ...], checkpoint: int, state: State
) -> tuple[tuple[int, State], ...]:
    """Return the readable versions with their states, from the checkpoint on."""
    states = [(checkpoint, state)] if checkpoint >= 0 else []
    number = checkpoint
    for at, version in versions:
        if at == number + 1:
            number, state = at, applied(state, version)
            states.append((number, state))
    return tuple(states)


def head_of(world: World) -> tuple[int, State]:
    """Return the number and the state of the head."""
    return states_of(world.versions, world.checkpoint, world.checkpoint_state)[-1]


@cache
def snapshot_of(version: int, state: State, steady_since: int) -> Snapshot:
    """Return a state as the source of a table does."""
    files = {path: _file(path, deletes) for path, deletes in sorted(state)}
    return Snapshot(version, TABLE, files=files, steady_since=steady_since)


def _file(path: str, deletes: Deletes) -> LakeFile:
    identity = ",".join(map(str, deletes))
    return LakeFile(path, 1, len(ROWS[path]), deleted_rows=len(deletes), deletes=identity)


def positions_of(file: LakeFile) -> Any:
    """Return the deleted positions of a file."""
    return np.array([int(word) for word in file.deletes.split(",") if word], np.uint64)


def load(world: World, since: int) -> Snapshot:
    """Return the head, read version by version from a planned one if they are all there."""
    number, state = head_of(world)
    steady = max((at for at, version in world.versions if version.is_schema), default=0)
    present = {at for at, _ in world.versions}
    if not present >= set(range(since + 1, number + 1)):
        steady = max(steady, world.checkpoint)
    return snapshot_of(number, state, steady)


def look(model: Model, world: World, name: str, outputs: frozenset[str], since: int) -> Sighting:
    """Look for an attempt as the source of a Delta table does."""
    present = {at for at, _ in world.versions}
    number = max([*present, world.checkpoint])
    for at, version in world.versions:
        paths = frozenset(path for path, _ in version.adds) & outputs
        if at > since and (version.attempt == name or paths):
            return _confirmed(model, world, Sighting(Look.FOUND, at, paths))
    missing = set(range(since + 1, number + 1)) - present
    if missing and "look without missing versions" not in model.faults:
        return Sighting(Look.CANNOT_TELL, number)
    return Sighting(Look.ABSENT, number)


def _confirmed(model: Model, world: World, sighting: Sighting) -> Sighting:
    if sighting.version > world.checkpoint or "look without checkpoints" in model.faults:
        return sighting
    # A checkpoint also has files that were removed not long ago.
    is_known = any(at == sighting.version for _, at in world.committed)
    return sighting if is_known else Sighting(Look.CANNOT_TELL, sighting.version)


def put(model: Model, world: World, number: int, version: Version) -> World | None:
    """Create a version, or return None if its name is taken."""
    present = {at for at, _ in world.versions}
    if number in present and "put without condition" not in model.faults:
        return None
    others = tuple(item for item in world.versions if item[0] != number)
    before, _ = head_of(world)
    world = world._replace(versions=tuple(sorted((*others, (number, version)))))
    if version.attempt and number > max(before, world.checkpoint):
        world = world._replace(committed=world.committed | {(version.attempt, number)})
    return world


# ------------------------------------------------------------------------------------ Other writers


@cache
def kinds_left(budget: tuple[int, ...]) -> frozenset[str]:
    """Return the kinds of events that may still happen."""
    return frozenset(kind for kind, count in zip(EVENTS, budget, strict=True) if count)


def write(world: World, version: Version, truth: frozenset[int]) -> World:
    """Commit a version of another writer: it knows the head, so it always succeeds."""
    number, _ = head_of(world)
    changed = world._replace(
        versions=tuple(sorted((*world.versions, (number + 1, version)))),
        truth=truth,
        stored=world.stored | {path for path, _ in version.adds},
    )
    return changed._replace(schema_at=number + 1) if version.is_schema else changed


def new_file(kind: str, number: int, rows: Sequence[int]) -> str:
    """Return the name of a new file with these rows."""
    path = f"{kind}{number}:{','.join(map(str, rows))}"
    ROWS[path] = tuple(rows)
    return path


def writers(world: World) -> Iterator[tuple[str, World]]:
    """Yield what other writers may do next: the kind of the event, and the world after it."""
    number, state = head_of(world)
    left = kinds_left(world.budget)
    if "append" in left:
        row = 10 + number
        adds = frozenset({(new_file("f", number + 1, [row]), ())})
        yield "append", write(world, Version(adds, frozenset()), world.truth | {row})
    if "schema" in left:
        version = Version(frozenset(), frozenset(), is_schema=True)
        yield "schema", write(world, version, world.truth)
    if "compact" in left and len(state) > 1:
        merged = frozenset(sorted(state)[:2])
        adds = frozenset({(new_file("m", number + 1, rows_of(merged)), ())})
        yield "compact", write(world, Version(adds, merged), world.truth)
    if "restore" in left:
        yield from _restores(world, state)
    for path, deletes in sorted(state):
        yield from _row_deletes(world, path, deletes, left)


def _restores(world: World, state: State) -> Iterator[tuple[str, World]]:
    states = states_of(world.versions, world.checkpoint, world.checkpoint_state)
    for _, older in states[:-1]:
        if older != state and {path for path, _ in older} <= world.stored:
            version = Version(older - state, state - older)
            yield "restore", write(world, version, frozenset(rows_of(older)))


def _row_deletes(
    world: World, path: str, deletes: Deletes, left: frozenset[str]
) -> Iterator[tuple[str, World]]:
    """Yield deletions of one row of a file, by a vector and by a copy."""
    number, _ = head_of(world)
    removes = frozenset({(path, deletes)})
    for position, row in enumerate(ROWS[path]):
        if position in deletes:
            continue
        taken = tuple(sorted((*deletes, position)))
        if "vector" in left:
            version = Version(frozenset({(path, taken)}), removes)
            yield "vector", write(world, version, world.truth - {row})
        if "copy" in left:
            rest = [other for at, other in enumerate(ROWS[path]) if at not in taken]
            copy = frozenset({(new_file("c", number + 1, rest), ())} if rest else ())
            yield "copy", write(world, Version(copy, removes), world.truth - {row})


def maintenance(world: World) -> Iterator[tuple[str, World]]:
    """Yield checkpoints, deletions of old versions, and vacuums."""
    left = kinds_left(world.budget)
    if left.isdisjoint(("checkpoint", "clean", "vacuum")):
        return
    number, state = head_of(world)
    if world.checkpoint < number:
        yield "checkpoint", world._replace(checkpoint=number, checkpoint_state=state)
    kept = tuple(item for item in world.versions if item[0] >= world.checkpoint)
    if len(kept) < len(world.versions):
        yield "clean", world._replace(versions=kept)
    # Files that were never committed are younger than a vacuum's retention, unless a day passed.
    committed = {name for name, _ in world.committed}
    fresh = {
        path
        for attempt in world.attempts
        if not attempt.is_old and attempt.name not in committed
        for path in world.stored
        if path.startswith(f"o{attempt.name}")
    }
    stored = world.stored & ({path for path, _ in state} | fresh)
    if stored != world.stored:
        yield "vacuum", world._replace(stored=stored)


# ----------------------------------------------------------------------------------------- Attempts


class Explorer:
    """All worlds of one model that events lead to."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rules = model.rules
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._next: dict[Any, tuple[int, int]] = {}
        self._rewrites: dict[Any, Any] = {}
        self._texts: dict[int, tuple[str, Any]] = {}

    # Values of the rules are kept by number: worlds stay small, and equal ones are one.

    def _number(self, key: Any, value: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(value)
        return self._numbers[key]

    def _publishing(self, state: Any) -> int:
        head = state.head
        key = (
            id(head) if head else None,
            state.tries,
            state.base,
            self._text(state.planned),
            self._text(state.outputs),
            self._text(state.verdict) if state.verdict.removed else "",
        )
        return self._number(key, state)

    def _text(self, value: Any) -> str:
        """Return the text of a value, written once: that of an array takes long."""
        if id(value) not in self._texts:
            self._texts[id(value)] = (repr(value), value)  # kept, so that its id stays its own
        return self._texts[id(value)][0]

    def _step(self, step: Any) -> int:
        return self._number(repr(step), step)

    def explore(self, worlds_max: int = 10**7) -> int:
        """Visit every world, and return how many there are.

        Raises:
            ViolationError: A world breaks a rule.
        """
        first = self._first()
        origin: dict[World, tuple[World | None, str]] = {first: (None, "")}
        todo = deque([(first, 0)])
        while todo and len(origin) < worlds_max:
            world, depth = todo.popleft()
            if depth >= self.model.scenario.depth_max:
                continue
            for label, after in self._events(world):
                if after not in origin:
                    origin[after] = (world, label)
                    if problem := self._problem(after):
                        raise ViolationError(f"{problem} after {trace_of(origin, after)}")
                    if not self._is_over(after):
                        todo.append((after, depth + 1))
        return len(origin)

    def _first(self) -> World:
        scenario = self.model.scenario
        state = frozenset({("a", ()), ("b", scenario.first_deletes)})
        return World(
            versions=((0, Version(state, frozenset(), is_schema=True)),),
            checkpoint=-1,
            checkpoint_state=frozenset(),
            truth=frozenset(rows_of(state)),
            stored=frozenset({"a", "b"}),
            committed=frozenset(),
            attempts=(),
            requests=frozenset(),
            budget=tuple(scenario.budget.get(kind, 0) for kind in EVENTS),
        )

    def _is_over(self, world: World) -> bool:
        """Return whether Névé has nothing left to do."""
        return (
            len(world.attempts) == self.model.scenario.attempts
            and not world.requests
            and not any(
                attempt.is_running or attempt.is_held or self._outputs_of(attempt) & world.stored
                for attempt in world.attempts
            )
        )

    def _outputs_of(self, attempt: Attempt) -> frozenset[str]:
        state = self._values[attempt.publishing]
        return frozenset(output.path for output in state.outputs)

    def _problem(self, world: World) -> str:
        number, state = head_of(world)
        rows = rows_of(state)
        if rows != tuple(sorted(world.truth)):
            return f"version {number} has rows {rows}, expected {sorted(world.truth)}"
        if missing := {path for path, _ in state} - world.stored:
            return f"version {number} names {sorted(missing)}, which are deleted"
        names = [name for name, _ in world.committed]
        if len(names) != len(set(names)):
            return f"an attempt is committed twice: {sorted(world.committed)}"
        for attempt in world.attempts:
            for name, at in world.committed:
                if name == attempt.name and attempt.planned < world.schema_at < at:
                    return f"attempt {name} is committed above a change of the schema"
        return ""

    # ---------------------------------------------------------------------------------- Events

    def _events(self, world: World) -> Iterator[tuple[str, World]]:
        for kind, after in itertools.chain(self._others(world), self._faults(world)):
            if (paid := _paid(after, kind)) is not None:
                yield kind, paid
        yield from self._starts(world)
        for index, attempt in enumerate(world.attempts):
            if attempt.is_running:
                yield from self._steps(world, index)
            yield from self._service(world, index)
        for request in world.requests:
            rest = world._replace(requests=world.requests - {request})
            yield "arrives", self._put(rest, request) or rest
            yield "never arrives", rest

    # What is of the format: another one overrides it.

    def _others(self, world: World) -> Iterator[tuple[str, World]]:
        return itertools.chain(writers(world), maintenance(world))

    def _load(self, world: World, since: int) -> Snapshot:
        return load(world, since)

    def _look(self, world: World, name: str, outputs: frozenset[str], since: int) -> Sighting:
        return look(self.model, world, name, outputs, since)

    def _positions(self, file: LakeFile) -> Any:
        return positions_of(file)

    def _put(self, world: World, request: Any) -> World | None:
        return put(self.model, world, *request)

    def _request(self, attempt: Attempt, step: Any) -> Any:
        """Return what an attempt sends."""
        verdict = step.verdict
        adds = {
            (output.path, tuple(map(int, verdict.deletes.get(output.path, ()))))
            for output in verdict.outputs
        }
        removes = {(file.path, tuple(map(int, positions_of(file)))) for file in verdict.removed}
        version = Version(frozenset(adds), frozenset(removes), attempt.name)
        return step.head.version + 1, version

    def _named(self, world: World) -> set[str]:
        """Return all files that a readable version names."""
        states = states_of(world.versions, world.checkpoint, world.checkpoint_state)
        return {path for _, state in states for path, _ in state}

    def _newest(self, world: World) -> int:
        """Return the last version."""
        return head_of(world)[0]

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        if kinds_left(world.budget).isdisjoint(("death", "redis", "day")):
            return
        for index, attempt in enumerate(world.attempts):
            if attempt.is_running:
                yield "death", _with(world, index, is_running=False)
        if any(attempt.is_held for attempt in world.attempts):
            lost = tuple(
                # Without the reservation nothing is known of the mark: it is as if it was there.
                attempt._replace(is_held=False, was_released=True, is_marked=True)
                if attempt.is_held
                else attempt
                for attempt in world.attempts
            )
            yield "redis", world._replace(attempts=lost)
        # A process that stops between mark and send for longer than the retention of orphans, or
        # a request on its way for so long, is not in the model.
        is_sending = any(
            isinstance(self._values[attempt.step], self.rules.SendVersion) and attempt.is_running
            for attempt in world.attempts
        )
        if not is_sending and not all(attempt.is_old for attempt in world.attempts):
            old = tuple(attempt._replace(is_old=True) for attempt in world.attempts)
            yield "day", world._replace(attempts=old, requests=frozenset())

    def _starts(self, world: World) -> Iterator[tuple[str, World]]:
        """Start the next attempt on two files of the head, if none holds them."""
        count = len(world.attempts)
        if count >= self.model.scenario.attempts or any(other.is_held for other in world.attempts):
            return
        name = str(count + 1)
        made = self._rewritten(world, name)
        if made is None:
            return
        planned, outputs = made
        publishing = self.rules.Publishing(planned, outputs, 0.0, tries_max=3)
        attempt = Attempt(
            name, planned.version, self._publishing(publishing), self._step(self.rules.LoadHead())
        )
        yield (
            "start",
            world._replace(
                attempts=(*world.attempts, attempt),
                stored=world.stored | {output.path for output in outputs},
            ),
        )

    def _rewritten(self, world: World, name: str) -> tuple[Planned, tuple[LakeOutput, ...]] | None:
        """Return the plan and the outputs of an attempt at the head; None: it has too few files."""
        number, state = head_of(world)
        inputs = sorted(state)[:2]
        if len(inputs) < 2:
            return None
        head = load(world, number)
        files = [head.files[path] for path, _ in inputs]
        planned = Planned(
            TABLE,
            number,
            {file.path: file.deletes for file in files},
            {file.path: positions_of(file) for file in files},
        )
        return planned, tuple(outputs_of(name, number, inputs, self.model.scenario.division))

    def _steps(self, world: World, index: int) -> Iterator[tuple[str, World]]:
        """Perform the next step of an attempt, in every way that it may go."""
        attempt = world.attempts[index]
        state, step = self._values[attempt.publishing], self._values[attempt.step]
        paths = frozenset(output.path for output in state.outputs)
        rules = self.rules
        if isinstance(step, rules.LoadHead):
            head = self._load(world, attempt.planned)
            yield "load", self._after(world, index, ("head", id(head)), rules.HeadLoaded(head))
        elif isinstance(step, rules.LookForAttempt):
            sighting = self._look(world, attempt.name, paths, step.since)
            yield "look", self._after(world, index, sighting, rules.Looked(sighting))
        elif isinstance(step, rules.ReadDeletes):
            positions = {file.path: self._positions(file) for file in step.files}
            yield "read", self._after(world, index, "read", rules.DeletesRead(positions))
        elif isinstance(step, rules.MarkReservation):
            marked = world
            if attempt.is_held:
                marked = _with(world, index, is_marked=True, base=state.head.last_version)
            event = rules.Marked(attempt.is_held)
            yield "mark", self._after(marked, index, attempt.is_held, event)
        elif isinstance(step, rules.SendVersion):
            for label, answer, after in self._sends(world, attempt, step):
                yield label, self._after(after, index, answer, rules.SendAnswered(answer))
        else:
            yield f"end {step.ending}", self._ended(world, index, step, paths)

    def _after(self, world: World, index: int, event_key: Any, event: Any) -> World:
        attempt = world.attempts[index]
        key = (attempt.publishing, attempt.step, event_key, attempt.is_old)
        if key not in self._next:
            state = self._values[attempt.publishing]
            now_s = 1e6 if attempt.is_old else 0.0
            state, step = self.rules.next_step(state, event, now_s)
            self._next[key] = (self._publishing(state), self._step_of(state, step))
        publishing, step_number = self._next[key]
        return _with(world, index, publishing=publishing, step=step_number)

    def _step_of(self, state: Any, step: Any) -> int:
        if isinstance(step, self.rules.SendVersion):
            return self._number(("send", self._publishing(state)), step)
        return self._step(step)

    def _sends(
        self, world: World, attempt: Attempt, step: Any
    ) -> Iterator[tuple[str, Answer, World]]:
        request = self._request(attempt, step)
        after = self._put(world, request)
        lost = _paid(world, "lost")
        if after is None:
            yield "send: conflict", Answer.CONFLICT, world
        else:
            yield "send: committed", Answer.COMMITTED, after
            if (false := _paid(after, "false")) is not None:
                yield "send: false conflict", Answer.CONFLICT, false
            if (paid := _paid(after, "lost")) is not None:
                yield "send: answer lost", Answer.UNKNOWN, paid
        if (false := _paid(world, "false")) is not None:
            yield "send: false commit", Answer.COMMITTED, false
        if lost is not None:
            yield "send: request lost", Answer.UNKNOWN, lost
        if (late := _paid(world, "late")) is not None:
            requests = late.requests | {request}
            yield "send: late", Answer.UNKNOWN, late._replace(requests=requests)

    def _ended(self, world: World, index: int, end: Any, outputs: frozenset[str]) -> World:
        """Perform the end of an attempt: what was not committed is deleted or becomes garbage."""
        attempt = world.attempts[index]
        names = {name for name, _ in world.committed}
        if end.ending == "committed" and attempt.name not in names:
            raise ViolationError(f"attempt {attempt.name} reports a commit that is none: {world}")
        if not end.was_sent and attempt.is_held:
            world = self._delete(world, outputs)
        return _with(world, index, is_running=False, is_held=False, was_released=True)

    def _delete(self, world: World, paths: frozenset[str]) -> World:
        """Delete files as Névé: none that a readable version names."""
        if wrong := paths & self._named(world) & world.stored:
            raise ViolationError(f"Névé deletes {sorted(wrong)}, which versions name: {world}")
        return world._replace(stored=world.stored - paths)

    # --------------------------------------------------------------------- Follower, collector

    def _service(self, world: World, index: int) -> Iterator[tuple[str, World]]:
        attempt = world.attempts[index]
        outputs = self._outputs_of(attempt)
        if attempt.is_held:
            sighting = self._look(world, attempt.name, outputs, attempt.since)
            released = _with(world, index, is_held=False, was_released=True)
            if not attempt.is_marked and sighting.look is Look.ABSENT:
                released = self._delete(released, outputs)
            elif "release deletes" in self.model.faults:
                released = self._delete(released, outputs - sighting.outputs)
            if (paid := _paid(released, "release")) is not None:
                yield "release", paid
        elif attempt.was_released and outputs & world.stored:
            if attempt.noted < 0:
                yield "note", _with(world, index, noted=self._newest(world))
            yield from self._collections(world, attempt, outputs)

    def _collections(
        self, world: World, attempt: Attempt, outputs: frozenset[str]
    ) -> Iterator[tuple[str, World]]:
        if attempt.noted < 0:
            return
        if not self.rules.may_delete_outputs(attempt.noted, self._newest(world)):
            return
        sighting = self._look(world, attempt.name, outputs, attempt.since)
        if "collector looks for attempts only" in self.model.faults:
            sighting = Sighting(Look.ABSENT)
        gone = frozenset(self.rules.never_committed(sighting, outputs & world.stored))
        if gone:
            yield "collect", self._delete(world, gone)


def outputs_of(
    name: str, number: int, inputs: Sequence[tuple[str, Deletes]], division: str
) -> Iterator[LakeOutput]:
    """Yield the outputs of an attempt; files without a live row have none."""
    live = [
        (path, position, row)
        for path, deletes in inputs
        for position, row in enumerate(ROWS[path])
        if position not in deletes
    ]
    first, second = inputs[0][0], inputs[1][0]
    parts = {"one": [live], "sorted": [live[::-1]]}.get(division)
    if parts is None:
        parts = [
            [item for item in live if item[0] == first],
            [item for item in live if item[0] == second],
        ]
    if division == "split" and parts[1]:
        parts = [[*parts[0], parts[1][0]], parts[1][1:]]
    if division == "forgetful":
        parts = parts[:1]
    for count, part in enumerate(parts):
        if part:
            rows = tuple(row for _, _, row in part)
            path = new_file(f"o{name}-", 10 * number + count, rows)
            yield LakeOutput(
                path,
                1,
                len(rows),
                (),
                tuple(sorted({item[0] for item in part})),
                offsets=() if division == "sorted" else tuple(_runs(part, dict(inputs))),
            )


def _runs(
    part: Sequence[tuple[str, int, int]], deletes: Mapping[str, Deletes]
) -> Iterator[KeptRows]:
    start = 0
    for path, items in itertools.groupby(part, key=lambda item: item[0]):
        positions = [position for _, position, _ in items]
        assert not set(range(positions[0], positions[-1] + 1)) - {*positions, *deletes[path]}
        first = positions[0]
        while first - 1 in deletes[path]:
            first -= 1
        yield KeptRows(path, first, positions[-1] + 1, start)
        start += len(positions)


def _with(world: World, index: int, **changes: Any) -> World:
    attempts = list(world.attempts)
    attempts[index] = attempts[index]._replace(**changes)
    return world._replace(attempts=tuple(attempts))


def _paid(world: World, kind: str) -> World | None:
    """Return the world with one event fewer to come, or None if there is none left."""
    budget = _budget_after(world.budget, kind)
    return None if budget is None else world._replace(budget=budget)


@cache
def _budget_after(budget: tuple[int, ...], kind: str) -> tuple[int, ...] | None:
    index = EVENTS.index(kind)
    if not budget[index]:
        return None
    return (*budget[:index], budget[index] - 1, *budget[index + 1 :])


def trace_of(origin: Mapping[World, tuple[World | None, str]], world: World) -> str:
    """Return the events that led to a world."""
    labels: list[str] = []
    current: World | None = world
    while current is not None:
        current, label = origin[current]
        labels.append(label)
    return " → ".join(reversed(labels[:-1]))
