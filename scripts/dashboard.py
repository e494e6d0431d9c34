"""Write the files of Grafana and Prometheus: `python -m scripts.dashboard`.

    k8s/monitoring/dashboard.yaml     the dashboard, from the table of metrics, as a ConfigMap
    docs/monitoring/dashboard.json    the same dashboard, for a Grafana outside Kubernetes
    docs/monitoring/alerts.yml        the alerts of Kubernetes, as a rule file of Prometheus

One row of panels for each part of the service, one panel for each metric. A counter is
shown as a rate, a histogram as its 95th percentile, a gauge as it is. A test keeps the files and
the table alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from common.telemetry import METRICS, Metric

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "k8s" / "monitoring" / "dashboard.yaml"
ALERTS = ROOT / "k8s" / "monitoring" / "alerts.yaml"
PLAIN_FOLDER = ROOT / "docs" / "monitoring"
HEAD = """\
# Written by `python -m scripts.dashboard`; do not edit.
apiVersion: v1
kind: ConfigMap
metadata:
  name: neve-dashboard
  labels:
    app.kubernetes.io/part-of: neve
    grafana_dashboard: "1"
data:
  neve.json: |
"""
INDENT = "    "
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
"""Grafana's grid has 24 columns."""
UNITS = (
    ("_bytes_per_second", "Bps"),
    ("_bytes", "bytes"),
    ("_bytes_total", "Bps"),
    ("_seconds", "s"),
    ("_seconds_total", "percentunit"),
    ("_total", "cps"),
)
"""Endings of names and Grafana's unit; of a counter, that of its rate. The first one holds."""


def expression(metric: Metric) -> str:
    """Return what a panel shows of a metric, in PromQL."""
    by = f" by ({', '.join(metric.labels)})" if metric.labels else ""
    match metric.kind:
        case "counter":
            return f"sum{by} (rate({metric.name}[$__rate_interval]))"
        case "histogram":
            labels = ", ".join(("le", *metric.labels))
            buckets = f"sum by ({labels}) (rate({metric.name}_bucket[$__rate_interval]))"
            return f"histogram_quantile(0.95, {buckets})"
        case _:
            return f"max{by} ({metric.name})"


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": "neve",
        "title": "Névé",
        "description": "Every metric of docs/reference/metrics.md.",
        "tags": ["neve"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource()]},
        "panels": list(_panels()),
    }


def page() -> str:
    """Return the file: a ConfigMap with the dashboard."""
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False)
    return HEAD + "".join(f"{INDENT}{line}\n" for line in text.splitlines())


def plain_alerts() -> str:
    """Return the alerts as a rule file of Prometheus."""
    head, _, groups = ALERTS.read_text("utf-8").partition("\nspec:\n")
    comments = [line for line in head.splitlines() if line.startswith("#")]
    lines = [line.removeprefix("  ") for line in groups.splitlines()]
    return "\n".join(
        ("# Written by `python -m scripts.dashboard`; do not edit.", *comments, *lines, "")
    )


def files() -> dict[Path, str]:
    """Return the content of each file."""
    plain = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    return {
        TARGET: page(),
        PLAIN_FOLDER / "dashboard.json": plain,
        PLAIN_FOLDER / "alerts.yml": plain_alerts(),
    }


def write() -> None:
    """Write all files."""
    PLAIN_FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Yield a row's title and its panels, row by row."""
    number, top = 1, 0
    for part, metrics in groupby(sorted(METRICS, key=_part), key=_part):
        yield {
            "id": number,
            "type": "row",
            "title": part.capitalize(),
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS * WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        number, top = number + 1, top + 1
        panels = list(_row(metrics, number, top))
        yield from panels
        number, top = number + len(panels), panels[-1]["gridPos"]["y"] + HEIGHT


def _row(metrics: Iterable[Metric], number: int, top: int) -> Iterator[dict[str, Any]]:
    for place, metric in enumerate(metrics):
        line, column = divmod(place, COLUMNS)
        grid = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + line * HEIGHT}
        yield _panel(metric, number + place, grid)


def _panel(metric: Metric, number: int, grid: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or metric.name
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.name,
        "description": metric.help,
        "datasource": source,
        "gridPos": grid,
        "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": source,
                "expr": expression(metric),
                "legendFormat": legend,
            }
        ],
    }


def _part(metric: Metric) -> str:
    """Return the part of the service that a metric is of: the word after `neve_`, singular."""
    part = metric.name.split("_")[1]
    return part if part == "series" else part.removesuffix("s")


def _unit(metric: Metric) -> str:
    return next((unit for ending, unit in UNITS if metric.name.endswith(ending)), "short")


if __name__ == "__main__":
    write()
