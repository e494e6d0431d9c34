"""The reference pages, written from the tables that the code itself uses."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from common.config import SettingRow, setting_rows
from common.documents import FieldKind
from common.log_events import EVENTS_BY_PART
from common.model.fields import known_fields
from common.model.table import PLANNER_SETTINGS, TableSettings
from common.units import format_bytes
from coordinator.plugins.planners.ratio import RatioPlanner
from coordinator.registry import unread_settings

MADE = "Written by `pytest tests/tidy --rewrite`; do not edit.\n"


SETTINGS_HEAD = """\
Later sources win: these defaults, the TOML file that `--config` or `NEVE_CONFIG` names (one
table per section), the environment (`NEVE_<SECTION>_<NAME>`), flags (`--set section.name=value`).
[configuration.md](../configuration.md) describes how they are given, checked and shown.

Every setting is read when the service starts: a change needs a restart. The column *now* names
the verb that changes a running service as well, where there is one.
"""
GROUPS_HEAD = """\
A setting of a group replaces the setting in section `compactor` for the compactors of the group.
Settings that a group does not have come from that section.
"""
LOGS_HEAD = """\
Every part writes one JSON line per event to standard error. A local stack keeps the lines in
files; `neve logs` shows them. Each line begins with `at` (UTC), `level`, `part` and `event`.
Further fields depend on the event, such as `table`, `tablet`, `job`, `attempt` and `cause`.
Secrets in URLs are left out.

| level | meaning |
| --- | --- |
| `info` | normal work |
| `warning` | something is retried, or affects a single table, job or caller |
| `error` | an operator should look at it |

Events below the setting `log.level` are not written.
"""
SERVICES_ROWS = (
    ("`services.<name>.planner`", "`ratio`", "", "The planner plug-in."),
    (
        "`services.<name>.groups`",
        '`[{ group = "default" }]`',
        "",
        "Groups of its jobs, a group in one service only. One with `max_size` takes jobs of fewer"
        " input bytes.",
    ),
    (
        "`services.<name>.options`",
        "`{}`",
        "",
        "Options of the planner, which refuses those that it does not know.",
    ),
    ("`dispatcher`", "`simple`", "", "The plug-in that chooses the service of a table."),
)
SETTINGS_COLUMNS = ("setting", "default", "now", "meaning")


def settings_page() -> str:
    """Return `docs/reference/settings.md`."""
    parts = ["# Settings\n", MADE, SETTINGS_HEAD]
    for section, rows in groupby(setting_rows(), key=lambda row: row.section):
        head = [GROUPS_HEAD] if section.startswith("groups") else []
        parts += [f"## {section}\n", *head, _table(SETTINGS_COLUMNS, map(_setting, rows))]
    parts += ["## services.<name>, dispatcher\n", _table(SETTINGS_COLUMNS, SERVICES_ROWS)]
    return "\n".join(parts)


def logs_page() -> str:
    """Return `docs/reference/logs.md`."""
    parts = ["# Logs\n", MADE, LOGS_HEAD]
    for part, events in EVENTS_BY_PART.items():
        rows = ((event.name, event.level.value, event.meaning) for event in events)
        parts += [f"## {part}\n", _table(("event", "level", "meaning"), rows)]
    return "\n".join(parts)


def table_settings_page() -> str:
    """Return `docs/reference/table-settings.md`."""
    documented = dict(_attribute_docs(TableSettings))
    rows = (
        (
            f"`{known_field.name}`",
            _default(known_field.name),
            _of_planner(known_field.name, documented[known_field.name]),
        )
        for known_field in known_fields(TableSettings)
    )
    return "\n".join(
        [
            "# Settings of a table\n",
            MADE,
            "Set them with `neve table create … --set NAME=VALUE`, with `neve table set TABLE\n"
            "NAME=VALUE …`, or with `client.create_table(…, settings={…})` and `client.set(…)`.\n"
            "`neve table describe` shows them. Sizes (`…_bytes`) and durations (`…_s`) may have\n"
            "a unit (`32MB`, `7d`), and their names may leave out `_bytes` and `_s`. Settings\n"
            "that can be off take `none`. If a value is not allowed, the call is refused and no\n"
            "setting changes. A change applies from the next job on. Settings that only planners\n"
            "read have no effect with a planner that does not declare them; `neve table\n"
            "describe` and `set` say so.\n",
            _table(("setting", "default", "meaning"), rows),
        ]
    )


PAGES = {
    "settings.md": settings_page,
    "logs.md": logs_page,
    "table-settings.md": table_settings_page,
}


def _attribute_docs(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class that have a docstring, and it as one line."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    for before, after in pairwise(tree.body):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(doc))
            ):
                yield name, " ".join(doc.split())


def _default(name: str) -> str:
    value: Any = getattr(TableSettings(), name)
    if value is None:
        return "off"
    if value in ("", ()) or (isinstance(value, Mapping) and not value):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if name.endswith("_bytes"):
        return f"`{format_bytes(value)}`"
    return f"`{value:g}s`" if name.endswith("_s") else f"`{value}`"


def _setting(row: SettingRow) -> tuple[str, ...]:
    default = row.default
    if row.kind is FieldKind.DURATION and isinstance(default, float):
        default = f"{default:g}s"
    elif row.kind is FieldKind.SIZE and isinstance(default, int):
        default = format_bytes(default)
    shown = "" if default in ("", None, ()) else f"`{default}`"
    meaning = f"{row.doc} Secret: never shown." if row.secret else row.doc
    live = f"`{row.live}`" if row.live else ""
    return f"`{row.section}.{row.name}`", shown, live, meaning


def _of_planner(name: str, meaning: str) -> str:
    if name not in PLANNER_SETTINGS:
        return meaning
    if name in unread_settings({"ratio": RatioPlanner()}):
        return f"{meaning} Read by planners only. The planner `ratio` does not read it."
    return f"{meaning} Read by planners only."


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
