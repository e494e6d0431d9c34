"""The reference pages, written from the tables that the code itself uses."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby, pairwise
from typing import Any

from common.config import SettingRow, setting_rows
from common.model.table import TableSettings
from common.telemetry import METRICS
from common.units import format_bytes

MADE = "Written by `pytest tests/tidy --rewrite`; do not edit.\n"


def settings_page() -> str:
    """Return `docs/reference/settings.md`."""
    parts = [
        "# Settings\n",
        MADE,
        "Later sources win: these defaults, the TOML file that `NEVE_CONFIG` names (one table per\n"
        "section), the environment (`NEVE_<SECTION>_<NAME>`), flags (`section.name=value`).\n"
        "`neve config check` says what is wrong with a file.\n",
    ]
    for section, rows in groupby(setting_rows(), key=lambda row: row.section):
        parts += [f"## {section}\n", _table(("setting", "default", "meaning"), map(_setting, rows))]
    return "\n".join(parts)


def metrics_page() -> str:
    """Return `docs/reference/metrics.md`."""
    rows = (
        (f"`{metric.name}`", metric.kind, _listed(metric.labels), metric.help) for metric in METRICS
    )
    return "\n".join(
        [
            "# Metrics\n",
            MADE,
            "`GET /metrics` serves these in Prometheus' text format.\n",
            _table(("metric", "kind", "labels", "meaning"), rows),
        ]
    )


def table_settings_page() -> str:
    """Return `docs/reference/table-settings.md`."""
    documented = dict(_attribute_docs(TableSettings))
    rows = (
        (f"`{each.name}`", _default(each.name), documented[each.name])
        for each in fields(TableSettings)
    )
    return "\n".join(
        [
            "# Settings of a table\n",
            MADE,
            "Given with `neve table create … --set NAME=VALUE` and `neve table set TABLE\n"
            "NAME=VALUE …`, or by `client.create_table(…, settings={…})` and `client.set(…)`;\n"
            "`neve table describe` shows them. Sizes (`…_bytes`) and durations (`…_s`) may\n"
            "bring a unit (`32MB`, `7d`), and their names may be written without it. What can be\n"
            "off takes `none`. What is not allowed is refused, and the settings stay as they\n"
            "were. A change holds from the next job on.\n",
            _table(("setting", "default", "meaning"), rows),
        ]
    )


PAGES = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
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
    if isinstance(default, float) and not row.name.endswith("_per_s"):
        default = f"{default:g}s"
    elif "bytes" in row.name.split("_") and isinstance(default, int):
        default = format_bytes(default)
    meaning = f"{row.doc} Secret: never shown." if row.secret else row.doc
    return f"`{row.section}.{row.name}`", f"`{default}`" if default != "" else "", meaning


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
