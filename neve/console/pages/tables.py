"""Tables: figures of all tables that the caller may read; sorted, filtered and paged here."""

import asyncio
from dataclasses import dataclass
from typing import Any

from neve import api
from neve.console.frame import Heading, Variables, View, listing, page

STATES = ("", "live", "paused", "filling", "going")


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table with its work."""

    table: api.Table
    backlog: api.Backlog | None = None
    activity: api.TableActivity | None = None

    @property
    def planner(self) -> str:
        """Name of its planner."""
        return str(self.table.settings.get("planner") or "")

    @property
    def group(self) -> str:
        """Names of the groups whose compactors owe it work, or its service."""
        if self.backlog is not None and self.backlog.groups:
            return ", ".join(sorted(self.backlog.groups))
        return str(self.table.settings.get("service") or "")

    @property
    def owed_bytes(self) -> int:
        """Bytes that are still to be rewritten; 0 for a table that is not among the largest."""
        return self.backlog.size_bytes if self.backlog else 0

    @property
    def queued(self) -> int:
        """Queued jobs."""
        return self.activity.queued if self.activity else 0

    @property
    def running(self) -> int:
        """Running jobs."""
        return self.activity.running if self.activity else 0

    def matches(self, words: str, state: str) -> bool:
        """Return whether all words are in its name, planner or group, and it has the state."""
        text = f"{self.table.name} {self.planner} {self.group}".lower()
        return all(word in text for word in words.lower().split()) and (
            not state or self.table.state == state
        )


HEADINGS = (
    Heading("name", "Table", lambda row: row.table.name, number=False),
    Heading("state", "State", lambda row: row.table.state, number=False),
    Heading(
        "backlog",
        "Backlog",
        lambda row: row.owed_bytes,
        hint="Bytes that are still to be rewritten",
    ),
    Heading(
        "tablets",
        "Busy",
        lambda row: row.backlog.tablets if row.backlog else 0,
        hint="Tablets that are not at rest",
    ),
    Heading("queued", "Queued", lambda row: row.queued, hint="Queued jobs"),
    Heading("running", "Running", lambda row: row.running, hint="Running jobs"),
    Heading("planner", "Planner", lambda row: row.planner, number=False),
    Heading("group", "Group", lambda row: row.group, number=False),
)
"""Columns that all tables have, and by which they are sorted."""
SAMPLED = (
    ("Tablets", "Number of tablets"),
    ("Files/tablet", "Average of some tablets, and the most of one: what a read has to merge"),
    ("Small", "Files smaller than a quarter of target_bytes, in some tablets"),
    ("Garbage", "Bytes that no reader sees, in files that an analysis has counted"),
    ("Tombstones", "Rows that mark a key as deleted, in some tablets"),
    (
        "Writes",
        "Bytes that jobs have written per byte that arrived, from some tablets",
    ),
    ("Last commit", "End of the last committed job"),
)
"""Further columns, read for the shown tables only: heading and hint."""


@page("/console/tables", "tables.html", of="GET /v1/tables", title="Tables", nav="Tables")
async def tables(view: View) -> Variables:
    """Return the rows of the page that the address names."""
    words, state = view.text("filter"), view.choice("state", STATES)
    listed = (await view.read("GET /v1/tables"))["tables"]
    backlog = _by_table(await view.maybe("GET /v1/backlog"), "backlog")
    activity = _by_table(await view.maybe("GET /v1/activity"), "tables")
    rows = [
        ListedTable(table, backlog.get(table.name), activity.get(table.name)) for table in listed
    ]
    chosen = listing(view, HEADINGS, [row for row in rows if row.matches(words, state)])
    names = [row.table.name for row in chosen.rows]
    reads = (view.maybe("GET /v1/tables/{table}/summary", table=name) for name in names)
    return {
        "listed": chosen,
        "summaries": dict(zip(names, await asyncio.gather(*reads), strict=True)),
        "sampled": SAMPLED,
        "words": words,
        "state": state,
        "states": STATES,
        "all_tables": len(listed),
    }


def _by_table(answer: dict[str, Any] | None, name: str) -> dict[str, Any]:
    return {line.table: line for line in (answer or {}).get(name, ())}
