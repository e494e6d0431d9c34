"""The reference pages, written from the tables that the code itself uses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from common.config import SettingRow, setting_rows
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


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page}


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
