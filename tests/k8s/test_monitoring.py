"""Alerts and dashboard name metrics that exist, and every alert has its paragraph."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml

from common.settings import GatewaySettings
from common.telemetry import METRICS
from scripts import dashboard
from tests.support.manifests import ROOT, Resource, group_of, one, rendered

RUNBOOK = ROOT / "docs" / "runbook.md"
ALERTS = ROOT / "k8s" / "monitoring" / "alerts.yaml"
FUNCTIONS = {"absent", "increase", "rate", "sum", "max", "histogram_quantile"}
WORDS = {"by", "and", "unless", "or"}
"""What the expressions use of PromQL. A word that is in neither set is taken for a metric."""
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression in PromQL names."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring) *\([^)]*\)", "", bare)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare)) - FUNCTIONS - WORDS


def labels_in(expression: str) -> set[str]:
    """Return the labels by which an expression chooses or sums."""
    chosen = re.findall(r"[{,]\s*(\w+)\s*[=!]", expression)
    summed = re.findall(r"\bby *\(([^)]*)\)", expression)
    return {*chosen, *(label.strip() for labels in summed for label in labels.split(","))}


def existing_names() -> set[str]:
    return {
        metric.name + suffix for metric in METRICS for suffix in SUFFIXES.get(metric.kind, ("",))
    }


def labels_of(name: str) -> set[str]:
    (metric,) = (each for each in METRICS if name.removesuffix("_bucket") == each.name)
    return {"le", *metric.labels}


def series_of(name: str) -> str:
    """Return the name by which Prometheus knows a metric of the table."""
    (series,) = (metric.name for metric in METRICS if metric.name == name)
    return series


def alerts() -> list[Resource]:
    """Return the alerts as they are written: tests are collected without kubectl."""
    rule = yaml.safe_load(ALERTS.read_text("utf-8"))
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def complaints(expression: str) -> list[str]:
    """Return what is wrong with the names in an expression."""
    named = names_in(expression)
    unknown = [f"{name} does not exist" for name in sorted(named - existing_names())]
    known = {label for name in named & existing_names() for label in labels_of(name)}
    return unknown + [f"no label {label}" for label in sorted(labels_in(expression) - known)]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_names_what_exists(alert: Resource) -> None:
    assert names_in(alert["expr"])
    assert complaints(alert["expr"]) == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("neve_queue_job > 0", ["neve_queue_job does not exist"]),
        ("rate(neve_http_request_seconds[5m]) > 0", ["neve_http_request_seconds does not exist"]),
        ("sum by (groups) (neve_queue_jobs) > 0", ["no label groups"]),
        ('neve_queue_jobs{grp="a"} > 0', ["no label grp"]),
        ('sum by (group) (rate(neve_queue_jobs{group="a"}[5m])) > 0', []),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(expression: str, said: list[str]) -> None:
    assert complaints(expression) == said


def test_production_has_the_alerts() -> None:
    groups = one(rendered("production"), "PrometheusRule", "neve")["spec"]["groups"]

    assert [alert for group in groups for alert in group["rules"]] == alerts()


def test_every_alert_has_its_paragraph_in_the_runbook() -> None:
    written = re.findall(r"^## (Neve\w+)$", RUNBOOK.read_text("utf-8"), re.M)

    assert written == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"].endswith(".")


def test_a_template_of_an_alert_names_a_label_that_it_keeps() -> None:
    for alert in alerts():
        used = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
        assert used <= labels_in(alert["expr"])


# ---------------------------------------------------------------------------------------- Dashboard


def test_the_dashboard_is_what_the_table_of_metrics_says(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        dashboard.write()

    for path, text in dashboard.files().items():
        assert path.read_text("utf-8") == text, f"`python -m scripts.dashboard` writes {path}"


def test_the_files_for_one_machine_are_those_of_kubernetes() -> None:
    config = yaml.safe_load(dashboard.TARGET.read_text("utf-8"))
    plain = json.loads((dashboard.PLAIN_FOLDER / "dashboard.json").read_text("utf-8"))
    assert plain == json.loads(config["data"]["neve.json"])

    rules = yaml.safe_load((dashboard.PLAIN_FOLDER / "alerts.yml").read_text("utf-8"))
    assert [rule for group in rules["groups"] for rule in group["rules"]] == alerts()


def test_the_scrape_file_shows_the_token_to_the_gateway() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    loaded = yaml.safe_load(text)
    (job,) = loaded["scrape_configs"]

    assert job["metrics_path"] == "/metrics"
    assert job["authorization"] == {
        "type": "Bearer",
        "credentials_file": "/path/to/.neve/default/token",
    }
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{GatewaySettings().port}"]}]
    assert loaded["rule_files"] == ["alerts.yml"]


def test_grafana_gets_every_metric_in_a_panel_of_its_own() -> None:
    config = yaml.safe_load(dashboard.TARGET.read_text("utf-8"))
    loaded = json.loads(config["data"]["neve.json"])
    panels = [panel for panel in loaded["panels"] if panel["type"] == "timeseries"]

    assert loaded["uid"] == "neve"
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert sorted(panel["title"] for panel in panels) == sorted(metric.name for metric in METRICS)
    for panel in panels:
        (target,) = panel["targets"]
        assert complaints(target["expr"].replace("$__rate_interval", "5m")) == []
        series = series_of(panel["title"])
        assert names_in(target["expr"]) <= {series, f"{series}_bucket"}


def test_no_panel_covers_another() -> None:
    taken: dict[tuple[int, int], int] = {}
    panels = dashboard.dashboard()["panels"]
    for panel in panels:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]
        assert grid["x"] + grid["w"] <= 24

    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_shows_a_token_that_only_reads_over_tls() -> None:
    monitor = one(rendered("production"), "PodMonitor", "neve-gateway")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": "neve-metrics", "key": "token"}
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "neve-gateway-tls", "key": "ca.crt"}
    assert "insecureSkipVerify" not in endpoint["tlsConfig"]


@pytest.mark.parametrize("overlay", ["production", "production-sentinel"])
def test_the_gateway_and_who_asks_it_speak_tls(overlay: str) -> None:
    resources = rendered(overlay)
    settings = tomllib.loads(one(resources, "ConfigMap", "neve-settings")["data"]["neve.toml"])
    pod = group_of(resources, "service")["template"]["spec"]
    (main,) = pod["containers"]
    (mount,) = (each for each in main["volumeMounts"] if each["name"] == "gateway-tls")
    (volume,) = (each for each in pod["volumes"] if each["name"] == "gateway-tls")
    annotations = one(resources, "Ingress", "neve-gateway")["metadata"]["annotations"]

    assert not settings["gateway"].get("insecure")
    assert settings["gateway"]["tls_certificate"] == f"{mount['mountPath']}/tls.crt"
    assert settings["gateway"]["tls_key"] == f"{mount['mountPath']}/tls.key"
    assert volume["secret"]["secretName"] == "neve-gateway-tls"
    assert main["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert annotations["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
