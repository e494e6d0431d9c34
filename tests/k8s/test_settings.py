"""Névé reads the settings file that each overlay gives to `neve serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.service_settings import load_service_settings
from tests.support.manifests import OVERLAYS, one, rendered

SECRETS = {
    "NEVE_STORE_URL": "redis://store.example:6379/0",
    "NEVE_GATEWAY_TOKEN": "a-token-of-thirty-two-characters!",
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_service_can_start_with_the_settings(overlay: str, tmp_path: Path) -> None:
    data = one(rendered(overlay), "ConfigMap", "neve-settings")["data"]
    (tmp_path / "neve.toml").write_text(data["neve.toml"], encoding="utf-8")

    settings = load_service_settings(tmp_path / "neve.toml", environ=SECRETS)

    assert settings.store.url == SECRETS["NEVE_STORE_URL"]
    assert settings.gateway.token == SECRETS["NEVE_GATEWAY_TOKEN"]
    assert (settings.gateway.host, settings.gateway.port) == ("0.0.0.0", 8642)
    assert settings.gateway.locations
    assert {name: each.compactors.min for name, each in settings.groups.items()} == {
        "small": 0,
        "large": 0,
    }
    groups = [group.name for group in settings.services["default"].groups]
    assert groups == ["small", "large"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_is_given_the_file_and_the_secrets(overlay: str) -> None:
    resources = rendered(overlay)
    settings = one(resources, "ConfigMap", "neve-settings")["metadata"]["name"]
    pod = one(resources, "Deployment", "neve-serve")["spec"]["template"]["spec"]
    environment = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "settings")

    assert environment["NEVE_CONFIG"]["value"] == f"{mount['mountPath']}/neve.toml"
    # The name carries a hash of the file: other settings are another pod.
    assert settings != "neve-settings"
    assert {"name": "settings", "configMap": {"name": settings}} in pod["volumes"]
    more = {"NEVE_STORE_WAIT_REPLICAS"} if overlay == "production-sentinel" else set()
    given = {name for name in environment if name.startswith("NEVE_")}
    assert given == {"NEVE_CONFIG", *SECRETS, *more}
    assert all("valueFrom" in environment[name] for name in SECRETS)
