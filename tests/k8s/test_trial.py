"""The trial on kind names what the manifests have, and says in plain words what a machine lacks.

kind and Docker run nowhere in these tests: small programs of their names write down how they are
called. `tests/e2e/service/test_kubernetes_trial.py` runs the commands of Névé on a real service.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from neve.cli.app import build
from tests.k8s.test_guide import GUIDE, commands, wanted_secrets
from tests.support.kubernetes.trial import TRIAL, Trial
from tests.support.manifests import (
    ROOT,
    matches,
    name_of,
    of_kind,
    one,
    pods_of,
    rendered,
)

UNITS = {"Mi": 2**20, "Gi": 2**30}


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    """Return the commands of a dry run, in the shell's words; without any tool in reach."""
    ran = subprocess.run(
        ["bash", TRIAL, "--dry-run"], capture_output=True, text=True, timeout=60, check=True
    )
    lines = re.findall(r"^\$ (.*)$", ran.stdout, re.M)
    return [shlex.split(line) for line in lines if not line.startswith("neve()")]


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def of_program(printed: list[list[str]], *first: str) -> list[list[str]]:
    return [words for words in printed if tuple(words[: len(first)]) == first]


def test_the_image_is_built_and_loaded_under_the_name_of_the_manifests(
    printed: list[list[str]],
) -> None:
    wanted = {pod.main["image"] for pod in pods_of(rendered("laptop"))} - {"valkey/valkey:9.1.2"}
    (build_words,) = of_program(printed, "docker", "build")
    (load_words,) = of_program(printed, "kind", "load", "docker-image")

    assert {after(build_words, "-t")} == {load_words[3]} == wanted
    assert (ROOT / after(build_words, "-f")).exists()


def test_on_arm64_the_base_image_is_the_one_that_the_dockerfile_names(tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho arm64\n")
    uname.chmod(0o755)
    ran = Trial(tmp_path, tools=()).run("--dry-run")
    (argument,) = re.findall(r"--build-arg (\S+)", ran.stdout)

    dockerfile = (ROOT / "k8s/image/Dockerfile").read_text("utf-8")
    assert re.findall(r"--build-arg (\S+)", dockerfile) == [argument]


def test_kuberay_is_the_release_of_the_guide(printed: list[list[str]]) -> None:
    (here,) = of_program(printed, "helm", "install")
    (guide,) = (words for words in commands() if words[:2] == ["helm", "install"])

    assert after(here, "--version") == after(guide, "--version")
    assert after(here, "--namespace") == after(guide, "--namespace")
    assert f"helm repo add kuberay {after(here, '--repo')}\n" in GUIDE


def test_what_is_applied_waited_for_and_entered_is_there(printed: list[list[str]]) -> None:
    resources = rendered("laptop")
    names = {name_of(resource).lower().replace(" ", "/") for resource in resources}
    kubectl = of_program(printed, "kubectl")
    applied = {words[-1] for words in of_program(printed, "kubectl", "apply")}
    waited = [words[5] for words in kubectl if words[3:5] == ["rollout", "status"]]
    entered = [words for words in kubectl if words[3] == "exec"]

    assert {after(words, "-n") for words in kubectl if "-n" in words} == {"neve"}
    assert {resource["metadata"].get("namespace", "neve") for resource in resources} == {"neve"}
    assert applied == {"k8s/base/namespace.yaml", "k8s/overlays/laptop"}
    assert waited
    assert {*waited, *(words[4] for words in entered)} <= names


def test_the_pod_that_is_entered_has_the_command_the_token_and_the_tables() -> None:
    resources = rendered("laptop")
    ran = subprocess.run(["bash", TRIAL, "--dry-run"], capture_output=True, text=True, check=True)
    (words,) = (shlex.split(line[2:]) for line in re.findall(r"^\$ neve\(\).*", ran.stdout, re.M))
    variables = dict(re.findall(r"(NEVE_\w+)=(\S+)", " ".join(words)))
    selector = {"matchLabels": one(resources, "Service", "neve-gateway")["spec"]["selector"]}
    (pod,) = (pod for pod in pods_of(resources) if matches(selector, pod.labels))
    (location,) = re.findall(r"--location (\S+)", ran.stdout)

    assert after(words, "-c") == pod.main["name"]
    assert variables["NEVE_URL"] == f"http://127.0.0.1:{pod.ports()['gateway']}"
    token = Path(variables["NEVE_TOKEN_FILE"])
    (mount,) = (m for m in pod.main["volumeMounts"] if m["mountPath"] == str(token.parent))
    (volume,) = (v for v in pod.spec["volumes"] if v["name"] == mount["name"])
    assert volume["secret"]["secretName"] == "neve-gateway"
    assert [item["path"] for item in volume["secret"]["items"]] == [token.name]
    folder = str(Path(location).parent)
    settings = one(resources, "ConfigMap", "neve-settings")["data"]["neve.toml"]
    assert folder in tomllib.loads(settings)["gateway"]["locations"]
    assert folder in [mount["mountPath"] for mount in pod.main["volumeMounts"]]


def test_every_verb_and_option_of_neve_exists(printed: list[list[str]]) -> None:
    root = typer.main.get_command(build())
    lines = of_program(printed, "neve")

    assert len(lines) > 10
    for _, *words in lines:
        command: Any = root
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        # Parses, and fails at a word that does not exist.
        files = [word.replace("/tmp/day-1.csv", __file__) for word in words]
        command.make_context("neve", files)


def test_docker_must_have_what_the_pods_request(tmp_path: Path) -> None:
    pods = [pod for pod in pods_of(rendered("laptop")) if pod.labels.get("ray.io/group") != "large"]
    requests = [container["resources"]["requests"] for pod in pods for container in pod.containers]
    (cluster,) = of_kind(rendered("laptop"), "RayCluster")
    requests.append(cluster["spec"]["autoscalerOptions"]["resources"]["requests"])
    wanted = sum(
        int(request["memory"][:-2]) * UNITS[request["memory"][-2:]] for request in requests
    )
    (gigabytes,) = re.findall(r"^memory_gb=(\d+)$", TRIAL.read_text("utf-8"), re.M)

    assert 0.5 <= int(gigabytes) - wanted / 1e9 <= 2, "the pods request another sum now"


# ----------------------------------------------------------------------------- What a machine lacks


def test_missing_programs_are_named_together_and_nothing_is_done(tmp_path: Path) -> None:
    trial = Trial(tmp_path, tools=("docker", "kubectl", "openssl"))
    ran = trial.run()

    assert ran.returncode == 1
    assert "needs programs that are not installed" in ran.stderr
    assert re.findall(r"^  (\w+): ", ran.stderr, re.M) == ["kind", "helm"]
    assert trial.calls() == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("docker info: exit 1", "docker does not answer; start Docker"),
        (
            "docker info: echo 8 8000000000",
            "Docker has 8 CPUs and 8 GB of memory, the trial needs 4",
        ),
        ("docker info: echo 2 32000000000", "Docker has 2 CPUs and 32 GB of memory"),
        ("kind get: echo neve-trial", "kind delete cluster --name neve-trial"),
    ],
)
def test_a_machine_that_is_not_ready_is_refused_before_anything_is_made(
    given: str, complaint: str, tmp_path: Path
) -> None:
    trial = Trial(tmp_path, answers=[given])
    ran = trial.run()

    assert ran.returncode == 1
    assert complaint in ran.stderr
    assert not [words for words in trial.calls() if "create" in words or "delete" in words]


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    ran = Trial(tmp_path).run("--kepe")

    assert (ran.returncode, ran.stderr) == (
        1,
        "trial.sh: unknown option --kepe; options are --keep and --dry-run\n",
    )


# --------------------------------------------------------------------------------------- Whole runs


def test_a_run_makes_the_secrets_that_the_pods_read_and_deletes_the_cluster(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    ran = trial.run()

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "It works: 8 files with 800 rows became 1 file with the newest 100" in ran.stdout
    assert trial.secrets() == wanted_secrets("laptop")
    assert trial.calls()[-1] == ["kind", "delete", "cluster", "--name", "neve-trial"]
    assert "password=" not in ran.stdout, "no secret is printed"


def test_a_kept_cluster_stays_and_the_end_says_how_to_use_and_delete_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    ran = trial.run("--keep")

    assert ran.returncode == 0
    assert "kind export kubeconfig --name neve-trial" in ran.stdout
    assert not [words for words in trial.calls() if "delete" in words]


@pytest.mark.parametrize(
    "failing", ["helm install", "docker build", "kubectl rollout", "kubectl exec"]
)
def test_a_step_that_fails_ends_the_trial_with_the_state_of_the_pods(
    failing: str, tmp_path: Path
) -> None:
    trial = Trial(tmp_path, answers=[f"{failing}: exit 3"])
    ran = trial.run()

    assert ran.returncode == 3
    assert "It failed" in ran.stdout
    assert ["kubectl", "get", "pods", "--all-namespaces"] in trial.calls()
    assert trial.calls()[-1] == ["kind", "delete", "cluster", "--name", "neve-trial"]


def test_a_table_that_was_not_compacted_fails_the_trial(tmp_path: Path) -> None:
    two = """kubectl exec: echo '  "path": "a",'; echo '  "path": "b",'"""
    ran = Trial(tmp_path, answers=[two]).run()

    assert ran.returncode == 1
    assert "the table has 2 files and" in ran.stderr


def test_the_script_has_no_mistake_that_shellcheck_finds() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", TRIAL], check=True, timeout=60)
