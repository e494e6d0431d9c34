"""A user who wants something all the time: changes, deletes, cancels, pauses, sweeps."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import Any

from common.runtime import call_id
from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from neve.client.requests import Request
from tests.chaos.batches import MODS, Kind
from tests.chaos.journal import Journal
from tests.chaos.load import answered
from tests.chaos.story import Story

OPEN_MAX = 4
"""Requests under way at a time."""
LOOK_S = 0.4
DELETE_SHARE = 0.4
CANCEL_SHARE = 0.25
PAUSE_MAX_S = 4.0
CANCEL_MAX_S = 4.0


@dataclass(slots=True)
class Open:
    """A request under way."""

    number: int
    request: Request
    cancel_at_s: float | None


class User:
    """Asks for compactions with transforms, follows them, and does what operators do."""

    def __init__(
        self, story: Story, journal: Journal, client: Client, kinds: tuple[Kind, ...]
    ) -> None:
        self._story = story
        self._journal = journal
        self._client = client
        self._kinds = kinds
        self._numbers = itertools.count(1)
        self._open: list[Open] = []
        self._resume_at_s: dict[str, float] = {}

    def run(self, seed: int) -> None:
        """Want things until the load must end; what is paused goes on then."""
        dice = random.Random(f"{seed} wishes")
        while not self._story.over.is_set():
            self.follow()
            self._want(dice)
            self._story.over.wait(dice.uniform(0.5, 3.0))
        self.resume(all_of_them=True)

    def finished(self) -> bool:
        """Return whether all requests are over."""
        self.follow()
        return not self._open

    def follow(self) -> None:
        """Look how far the requests are; cancel those whose time has come."""
        self.resume()
        for each in list(self._open):
            if each.cancel_at_s is not None and time.monotonic() > each.cancel_at_s:
                each.cancel_at_s = None
                self._tolerated("cancel", each.request.cancel)
            status = answered(self._story, "status", each.request.status)
            if status.ended:
                table = each.request.table
                self._journal.note(table, "ended", number=each.number, state=status.state)
                self._story.count(f"requests {status.state}")
                self._story.tell(
                    "request ended", number=each.number, state=status.state, cause=status.cause
                )
                self._open.remove(each)

    def resume(self, *, all_of_them: bool = False) -> None:
        """Resume the tables whose pause is over."""
        for table, at_s in list(self._resume_at_s.items()):
            if all_of_them or time.monotonic() > at_s:
                answered(self._story, "resume", lambda table=table: self._client.resume(table))
                del self._resume_at_s[table]

    def _want(self, dice: random.Random) -> None:
        kind, chance = dice.choice(self._kinds), dice.random()
        if chance < 0.6:
            if len(self._open) < OPEN_MAX:
                self._ask(kind, dice)
        elif chance < 0.75:
            self._resume_at_s[kind.name] = time.monotonic() + dice.uniform(0.5, PAUSE_MAX_S)
            answered(self._story, "pause", lambda: self._client.pause(kind.name))
            self._story.count("pauses")
        elif chance < 0.9:
            self._tolerated("gc", lambda: self._client.gc(kind.name, delete=True))
        else:
            jobs = answered(self._story, "jobs", self._client.jobs)
            if jobs:
                job = dice.choice(jobs)
                self._tolerated("cancel of a job", lambda: self._client.cancel_job(job.attempt))

    def _ask(self, kind: Kind, dice: random.Random) -> None:
        """Make a request that changes or deletes rows of a range."""
        number, call = next(self._numbers), call_id()
        low, high = 0, 1 << 40
        if kind.keyed:
            low, high = sorted((dice.randrange(kind.keys), dice.randrange(kind.keys)))
        delete = dice.randrange(MODS) if dice.random() < DELETE_SHARE else None
        cancel = dice.random() < CANCEL_SHARE
        wish = {"number": number, "low": low, "high": high, "delete": delete}
        asked: dict[str, Any] = {"start": str(low), "end": str(high)} if kind.keyed else {}
        if delete is None:
            asked["set"] = f"tags = concat(tags, '|{number}')"
        else:
            asked["delete_where"] = f"mod = {delete}"
        self._journal.note(kind.name, "asked", call=call, wish=wish)
        self._story.tell("request", table=kind.name, cancel=cancel, **wish)
        request = answered(
            self._story, "request", lambda: self._client.compact(kind.name, call=call, **asked)
        )
        self._story.count("requests")
        cancel_at_s = time.monotonic() + dice.uniform(0.0, CANCEL_MAX_S) if cancel else None
        self._open.append(Open(number, request, cancel_at_s))

    def _tolerated(self, what: str, call: Any) -> None:
        """Do what may come too late, or at the wrong moment."""
        try:
            answered(self._story, what, call)
            self._story.count(what)
        except (RefusedError, CallerError) as error:
            self._story.count(f"{what} refused")
            self._story.tell("refused", what_was=what, error=error)
