"""Névé reads the settings file that each overlay gives to `neve serve`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.access_settings import AccessSettings
from common.units import parse_size_bytes
from neve.service_settings import load_service_settings
from tests.support.manifests import OVERLAYS, one, rendered

SECRET_FILES = {
    "NEVE_STORE_URL_FILE": ("neve-store", "url"),
    "NEVE_GATEWAY_TOKEN_FILE": ("neve-gateway", "token"),
}
"""Variable → name and key of the secret whose file it names. No value is in the settings, which
are arguments of actors: Ray's head keeps those."""


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_service_can_start_with_the_settings(overlay: str, tmp_path: Path) -> None:
    data = one(rendered(overlay), "ConfigMap", "neve-settings")["data"]
    (tmp_path / "neve.toml").write_text(data["neve.toml"], encoding="utf-8")

    environ = {name: f"/secrets/{key}" for name, (_, key) in SECRET_FILES.items()}
    settings = load_service_settings(tmp_path / "neve.toml", environ=environ)

    assert settings.store.url_file == environ["NEVE_STORE_URL_FILE"]
    assert settings.gateway.token_file == environ["NEVE_GATEWAY_TOKEN_FILE"]
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
    assert given == {"NEVE_CONFIG", *SECRET_FILES, *more}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_pod_has_the_files_of_the_secrets_that_its_actors_read(overlay: str) -> None:
    resources = rendered(overlay)
    serve = one(resources, "Deployment", "neve-serve")["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in serve["containers"][0]["env"]}
    paths = {name: environment[name] for name in SECRET_FILES}
    cluster = one(resources, "RayCluster", "neve")["spec"]
    workers = cluster["workerGroupSpecs"]
    pods = {"serve": serve, "head": cluster["headGroupSpec"]["template"]["spec"]}
    pods |= {worker["groupName"]: worker["template"]["spec"] for worker in workers}

    for name, pod in pods.items():
        wanted = set(SECRET_FILES) if name in {"serve", "service"} else {"NEVE_STORE_URL_FILE"}
        assert secret_files(pod) >= {(paths[each], *SECRET_FILES[each]) for each in wanted}, name


@pytest.mark.parametrize("overlay", ["production", "production-sentinel"])
def test_the_audit_outlives_the_pod_of_the_gateway(overlay: str) -> None:
    resources = rendered(overlay)
    settings = tomllib.loads(one(resources, "ConfigMap", "neve-settings")["data"]["neve.toml"])
    audit = Path(settings["access"]["audit_file"])
    workers = one(resources, "RayCluster", "neve")["spec"]["workerGroupSpecs"]
    (pod,) = (each["template"]["spec"] for each in workers if each["groupName"] == "service")
    mounts = pod["containers"][0]["volumeMounts"]
    (name,) = (each["name"] for each in mounts if audit.is_relative_to(each["mountPath"]))
    (volume,) = (each for each in pod["volumes"] if each["name"] == name)
    claim = one(resources, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])

    access = AccessSettings()
    files = 3 * (access.audit_files_kept + 1) * access.audit_file_bytes_max
    assert parse_size_bytes(claim["spec"]["resources"]["requests"]["storage"] + "B") > files


def secret_files(pod: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return path, name and key of each file of a secret that a pod's container has."""
    volumes = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    return {
        (f"{mount['mountPath']}/{item['path']}", secret["secretName"], item["key"])
        for mount in pod["containers"][0]["volumeMounts"]
        if (secret := volumes.get(mount["name"]))
        for item in secret.get("items", ())
    }
