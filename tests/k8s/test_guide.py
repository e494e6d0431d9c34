"""The pages for Kubernetes name secrets, files, verbs, pods and times that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator

import pytest
import typer.main

from common.metadata.redis.connection import StoreServers, parse_url_of_store
from neve.cli.app import build
from tests.support.manifests import (
    OVERLAYS,
    ROOT,
    Resource,
    group_of,
    name_of,
    of_kind,
    one,
    pods_of,
    rendered,
)

GUIDE = (ROOT / "k8s" / "README.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
PAGES = {"k8s/README.md": GUIDE, "docs/kubernetes.md": PAGE, "docs/runbook.md": RUNBOOK}


def commands() -> Iterator[list[str]]:
    """Yield the commands of the guide, in the shell's words."""
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.S):
        for line in block.splitlines():
            words = shlex.split(line.strip().removesuffix("&"))
            if words:
                yield words


def is_volume(value: dict[str, object]) -> bool:
    """Return whether a mapping is a volume of a secret."""
    secret = value.get("secret")
    return isinstance(secret, dict) and "secretName" in secret


def secrets_of(value: object) -> Iterator[tuple[str, str]]:
    """Yield name and key of each secret that a resource refers to."""
    if isinstance(value, dict):
        found = value.get("secretKeyRef")
        if found is not None:
            yield found["name"], found["key"]
        for item in value.get("secret", {}).get("items", ()) if is_volume(value) else ():
            yield value["secret"]["secretName"], item["key"]
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from secrets_of(each)


def wanted_secrets(overlay: str) -> set[tuple[str, str]]:
    resources = rendered(overlay)
    (cluster,) = of_kind(resources, "RayCluster")
    ray = (cluster["spec"]["authOptions"]["secretName"], "auth_token")
    return {*secrets_of(resources), ray}


def test_the_guide_makes_the_secrets_that_the_laptop_refers_to() -> None:
    made = {
        (words[6], word.removeprefix("--from-literal=").partition("=")[0])
        for words in commands()
        if words[3:5] == ["create", "secret"]
        for word in words
        if word.startswith("--from-literal=")
    }

    assert made == wanted_secrets("laptop")


def test_the_page_lists_the_secrets_that_production_refers_to() -> None:
    table = re.findall(r"^\| `([\w-]+)` \| (.*?) \| .* \|$", PAGE, re.M)
    listed = {
        (name, key)
        for name, keys in table
        for key in re.findall(r"`([\w.]+)`", keys)
        if (name, key) in wanted_secrets("production")
    }

    assert listed == wanted_secrets("production")
    (ingress,) = of_kind(rendered("production"), "Ingress")
    tls = [entry["secretName"] for entry in ingress["spec"]["tls"]]
    assert set(tls) <= {name for name, _ in table}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_of_a_page_exists(page: str) -> None:
    written = re.findall(r"(?<![\w/.])k8s/[\w./-]*\w", PAGES[page])
    linked = re.findall(r"\]\((?!https:)([^)#]+)", PAGES[page])
    folder = (ROOT / page).parent

    assert linked
    assert not [path for path in written if not (ROOT / path).exists()]
    assert not [path for path in linked if not (folder / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_finds_it(page: str) -> None:
    for target, section in re.findall(r"\]\((?!https:)([^)#]*)#([^)]+)\)", PAGES[page]):
        path = (ROOT / page).parent / target if target else ROOT / page
        heads = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.M)
        anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert section in anchors, f"{target}#{section}"


@pytest.mark.parametrize("page", PAGES)
def test_every_verb_of_a_page_exists(page: str) -> None:
    written = re.findall(r"^ *neve ([a-z -]+)|`neve ([a-z-]+(?: [a-z]+)*)", PAGES[page], re.M)
    command = typer.main.get_command(build())

    assert written
    for line, code in written:
        words = (line or code).split()
        inside = command
        for word in words:
            if not hasattr(inside, "commands"):
                break
            assert word in inside.commands, f"neve {' '.join(words)}"
            inside = inside.commands[word]


def test_the_guide_builds_and_loads_the_image_of_the_laptop() -> None:
    images = {pod.main["image"] for pod in pods_of(rendered("laptop"))} - {"valkey/valkey:9.1.2"}
    built = {
        words[words.index("-t") + 1] for words in commands() if words[:2] == ["docker", "build"]
    }
    loaded = {words[3] for words in commands() if words[:3] == ["kind", "load", "docker-image"]}

    assert built == loaded == images


def test_the_guide_waits_for_what_is_there() -> None:
    resources = [*rendered("laptop"), *rendered("production-sentinel")]
    names = {name_of(resource).lower().replace(" ", "/") for resource in resources}
    waited = re.findall(r"rollout status (\S+)|port-forward (\S+)", GUIDE)

    assert waited
    assert {name for pair in waited for name in pair if name} <= names


def test_the_three_times_of_a_drain_are_those_of_production() -> None:
    said = {
        name: int(number)
        for name, number in re.findall(r"^\| `(\w[\w.]+)`[^|]*\| (\d+) s \|$", PAGE, re.M)
    }
    pod: Resource = group_of(rendered("production"), "large")["template"]["spec"]
    environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    drain = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"

    assert said == {
        "compactor.drain_timeout_s": 600,
        drain: int(environment[drain]),
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
    }


@pytest.mark.parametrize("group", ["small", "large"])
def test_the_table_of_sizes_is_that_of_production(group: str) -> None:
    (row,) = re.findall(
        rf"^\| `{group}` \| (.+?) \| (\d+) GiB \| (\d+) \| [\d.]+ [GM]iB \|$", PAGE, re.M
    )
    settings, limit, cpus = row
    limits = group_of(rendered("production"), group)["template"]["spec"]["containers"][0]
    toml = next(
        each["data"]["neve.toml"]
        for each in of_kind(rendered("production"), "ConfigMap")
        if each["metadata"]["name"].startswith("neve-settings")
    )
    written = tomllib.loads("\n".join(re.findall(r"`(\w+ = [^`]+)`", settings)))

    assert limits["resources"]["limits"]["memory"] == f"{limit}Gi"
    assert limits["resources"]["limits"]["cpu"] == cpus
    assert written.items() <= tomllib.loads(toml)["groups"][group].items()


def test_every_overlay_is_described() -> None:
    assert all(f"`overlays/{overlay}/`" in GUIDE for overlay in OVERLAYS)


def test_the_url_of_the_guide_names_every_sentinel() -> None:
    """Run its lines: what they make is a URL that Névé reads, with the pods that there are."""
    (block,) = re.findall(r"```console\n(.*?)```", GUIDE, re.S)
    lines = re.split(r"(?<!\\)\n", re.sub(r"^\$ ", "", block, flags=re.M))
    made = ("sentinels=", "login=", "kubectl -n neve create secret")
    script = "".join(f"{line}\n" for line in lines if line.startswith(made))
    kubectl = 'kubectl() { for each in "$@"; do echo "$each"; done; }\npassword=abc\n'
    ran = subprocess.run(["sh", "-c", kubectl + script], capture_output=True, text=True, check=True)
    (url,) = re.findall(r"^--from-literal=url=(.*)$", ran.stdout, re.M)
    found = parse_url_of_store(url)

    assert isinstance(found, StoreServers)
    resources = rendered("production-sentinel")
    count = one(resources, "StatefulSet", "neve-sentinel")["spec"]["replicas"]
    wanted = [f"neve-sentinel-{number}.neve-sentinel" for number in range(count)]
    assert [sentinel.host for sentinel in found.known] == wanted
    logins = {(sentinel.username, sentinel.password) for sentinel in (*found.known, found.login)}
    assert logins == {("neve", "abc")}
    settings = one(resources, "ConfigMap", "redis-sentinel-settings")["data"]
    assert f"sentinel monitor {found.service} " in settings["start-sentinel.sh"]
    assert wanted_secrets("production-sentinel") == wanted_secrets("laptop")
