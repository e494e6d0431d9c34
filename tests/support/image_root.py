"""`make test-image-root`: the Dockerfile of the image on a bare Debian, and the service in it.

Debian 12 of debootstrap takes the place of the base image: it has Python 3.11, and nothing of Ray.
The instructions of the Dockerfile run in it as their users. Then the root gets private network,
mount and PID namespaces, the files that the overlay `laptop` mounts, a Ray node with what its
groups offer, and a Redis from outside. `neve serve` starts, and `k8s/trial.sh` does its work: the
stand-ins of `kubectl exec` enter the root.

IMAGE_ROOT=FOLDER keeps the root, or uses one that was kept.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from socket import gethostname

from neve.local.machine import find_redis_server
from neve.local.processes import exit_on_sigterm
from tests.support.kubernetes.machine import HEAD_ADDRESS, prepare_network
from tests.support.kubernetes.namespaces import make_namespaces
from tests.support.kubernetes.trial import Trial
from tests.support.manifests import ROOT, one, rendered
from tests.support.patience import SERVICE_S, vain_wait

IMAGE = ROOT / "k8s" / "image"
RELEASE = "bookworm"
ARCHIVE = "http://deb.debian.org/debian"
BASE_PACKAGES = "ca-certificates,python3-venv"
NEEDED = {
    "debootstrap": "apt install debootstrap",
    "chroot": "apt install coreutils",
    "unshare": "apt install util-linux",
    "ip": "apt install iproute2",
    "kubectl": "apt install kubernetes-client",
}
PIP_SETTINGS = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "TRUSTED_HOST", "DEFAULT_TIMEOUT")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
USER = "1000:100"
NAMES = "neve-head-svc neve-redis"
STORE_PORT = 7000
TOKEN = "0123456789abcdef" * 2
RAY_START = (
    "ray start --head --port=6379 --ray-client-server-port=10001 --num-cpus=3 --block"
    " --object-store-memory=209715200 --include-dashboard=false --disable-usage-stats"
    """ --resources='{"neve_service": 1, "neve_group_small": 1}'"""
)


def main() -> int:
    """Build the root, and test it; the exit code is 1 if something is missing or fails."""
    if sys.argv[1:]:
        return serve(Path(sys.argv[1]))
    if lacking := missing():
        print("This machine cannot run the image in a root of its own:", *lacking, sep="\n  ")
        return 1
    exit_on_sigterm()  # which ends the namespaces, too
    kept = os.environ.get("IMAGE_ROOT")
    folder = Path(kept or tempfile.mkdtemp(prefix="image-root-", dir="/var/tmp")).absolute()
    again = [sys.executable, "-m", "tests.support.image_root", str(folder)]
    try:
        if not (folder / "built").exists():
            build(folder)
            (folder / "built").touch()
        return subprocess.run([*make_namespaces(), *again], check=False).returncode
    finally:
        if kept is None:
            shutil.rmtree(folder)


def missing() -> list[str]:
    """Return what this machine lacks, in words."""
    if sys.platform != "linux":
        return ["Linux: a root of Debian needs its kernel"]
    programs = [f"{name}: {how}" for name, how in NEEDED.items() if shutil.which(name) is None]
    if os.geteuid():
        programs.append("root rights: debootstrap and chroot need them; run it with sudo")
    return programs


# ------------------------------------------------------------------------------------------- Build


def build(folder: Path) -> None:
    """Make the root, and run the instructions of the Dockerfile in it."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)  # of a build that did not end
    root.mkdir(parents=True)
    step(f"debootstrap {RELEASE}")
    include = f"--include={BASE_PACKAGES}"
    run(["debootstrap", "--variant=minbase", include, RELEASE, str(root), ARCHIVE])
    run(["chroot", str(root), "useradd", "--uid=1000", "--gid=100", "--create-home", "ray"])
    settings = pip_settings()
    variables = settings | {name: os.environ[name] for name in PROXIES if name in os.environ}
    if authorities := os.environ.get("PIP_CERT"):
        variables["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"
        shutil.copy(authorities, root / variables["PIP_CERT"].lstrip("/"))
    mounts = [f"mount -t proc proc {root}/proc", *mounts_of(settings, root)]
    user = "root"
    for instruction, words in instructions():
        step(f"{instruction} {words[:100]}")
        if instruction == "USER":
            user = "0:0" if words == "root" else words
        elif instruction == "COPY":
            copy_context(root / "tmp" / "sources")
            run(["chroot", str(root), "chown", "-R", USER, "/tmp/sources"])
        elif instruction == "RUN":
            inside = shlex.join(entered(root, variables, ["sh", "-c", words], user))
            script = "\n".join(["set -e", *mounts, inside])
            run(["unshare", "--mount", "--propagation=private", "sh", "-c", script])


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile that change its files, with their words."""
    text = (IMAGE / "Dockerfile").read_text("utf-8").replace("\\\n", "")
    yield from re.findall(r"^(USER|COPY|RUN) (.*)$", text, re.M)


def image_variables() -> dict[str, str]:
    """Return the variables that the Dockerfile sets."""
    text = (IMAGE / "Dockerfile").read_text("utf-8")
    named = dict(re.findall(r"^(?:ENV| {3}) (\w+)=(\S+)", text, re.M))
    return {**named, "PATH": named["PATH"].replace("$PATH", "/usr/sbin:/usr/bin:/sbin:/bin")}


def copy_context(target: Path) -> None:
    """Copy what the build of the image is given."""
    taken = re.findall(r"^!(\S+)", (IMAGE / "Dockerfile.dockerignore").read_text("utf-8"), re.M)
    for path in taken:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / path, target / path, ignore=ignored)
        else:
            shutil.copy2(ROOT / path, target / path)


def pip_settings() -> dict[str, str]:
    """Return where pip of this machine looks for packages, as variables."""
    listed = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].replace("-", "_").upper()
        if name in PIP_SETTINGS:
            found[f"PIP_{name}"] = " ".join(value.strip("'").replace("\\n", " ").split())
    return found


def mounts_of(settings: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield commands that show the root the folders in which pip looks for packages."""
    for word in sorted({word for value in settings.values() for word in value.split()}):
        folder = Path(word.removeprefix("file://"))
        if folder.is_absolute() and folder.is_dir():
            # The pages of an index name files next to it.
            shown = folder.parent if folder.name == "simple" else folder
            yield f"mkdir -p {root}{shown} && mount --bind {shown} {root}{shown}"


def entered(
    root: Path, variables: Mapping[str, str], command: list[str], user: str = USER
) -> list[str]:
    """Return the words that run a command in the root, with these variables only."""
    there = {"HOME": "/tmp", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    assignments = [f"{name}={value}" for name, value in there.items()]
    words = ["chroot", f"--userspec={user}", str(root), "/usr/bin/env", "-i", *assignments]
    return [str(shutil.which("chroot")), *words[1:], *command]


# ------------------------------------------------------------------------------------------- Serve


def serve(folder: Path) -> int:
    """Run the service in the root, and the trial on it; the first process of its namespaces."""
    root = folder / "root"
    prepare_root(root)
    prepare_network(folder)
    log = folder / "service.log"
    store = [str(find_redis_server(os.environ).program), "--port", str(STORE_PORT), "--save", ""]
    variables = image_variables() | serve_variables()
    node = {name: value for name, value in variables.items() if not name.startswith("NEVE_")}
    del node["RAY_ADDRESS"]
    with log.open("wb") as output:
        step("Redis, Ray and `neve serve`")
        start = entered(root, node, ["sh", "-c", f"cd /tmp && exec {RAY_START}"])
        for command in (store, start):
            subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        wait_for("Ray", entered(root, node, ["ray", "status", "--address=127.0.0.1:6379"]), log)
        (container,) = serve_pod()["containers"]
        command = entered(root, variables, ["sh", "-c", 'cd /tmp && exec "$@"', "sh"])
        subprocess.Popen([*command, *container["command"]], stdout=output, stderr=output)
        ready = "import urllib.request as r; r.urlopen('http://127.0.0.1:8643/ready')"
        wait_for("`neve serve`", entered(root, variables, ["python", "-c", ready]), log)
    step("k8s/trial.sh, with the root for the pod of the gateway")
    tools = folder / "tools"
    shutil.rmtree(tools, ignore_errors=True)
    tools.mkdir()
    inside = shlex.join(entered(root, image_variables(), []))
    answer = f'while [ "$1" != -- ]; do shift; done; shift; exec {inside} "$@"'
    ran = Trial(tools, answers=[f"kubectl exec: {answer}"]).run(timeout_s=SERVICE_S)
    print(ran.stdout, ran.stderr, flush=True)
    if ran.returncode:
        print(log.read_text("utf-8", "replace")[-5000:])
    return ran.returncode


def serve_pod() -> dict[str, list[dict[str, list[str]]]]:
    """Return what the pod of `neve serve` is made of."""
    template = one(rendered("laptop"), "Deployment", "neve-serve")["spec"]["template"]
    spec: dict[str, list[dict[str, list[str]]]] = template["spec"]
    return spec


def serve_variables() -> dict[str, str]:
    """Return the variables of `neve serve`, as the manifest has them."""
    (container,) = serve_pod()["containers"]
    literal = {e["name"]: e["value"] for e in container["env"] if "value" in e}  # type: ignore[index]
    return literal | {"RAY_AUTH_TOKEN": TOKEN}


def prepare_root(root: Path) -> None:
    """Give the root the devices of a container, and the files that the manifests mount."""
    for kind in ("proc", "sys", "dev"):
        run(["mount", "--rbind", f"/{kind}", f"{root}/{kind}"])
    run(["mount", "-t", "tmpfs", "tmpfs", f"{root}/dev/shm"])
    settings = one(rendered("laptop"), "ConfigMap", "neve-settings")["data"]["neve.toml"]
    files = {
        "etc/neve/neve.toml": settings,
        "etc/neve/secrets/store/url": f"redis://neve-redis:{STORE_PORT}/0",
        "etc/neve/secrets/gateway/token": TOKEN,
        # As in a pod, the name of the machine leads to an address: Spark's master looks for it.
        "etc/hosts": f"127.0.0.1 localhost {NAMES}\n{HEAD_ADDRESS} {gethostname()}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.rmtree(root / "data", ignore_errors=True)  # Of the Redis of an earlier run.
    (root / "data").mkdir()
    os.chown(root / "data", 1000, 100)


def wait_for(what: str, command: list[str], log: Path) -> None:
    """Return when a command succeeds."""
    end_s = time.monotonic() + SERVICE_S
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{vain_wait(what, SERVICE_S)}\n{log.read_text()[-5000:]}")
        time.sleep(1)


def step(text: str) -> None:
    """Print what is done now."""
    print(f"--- {text}", flush=True)


def run(words: list[str]) -> None:
    """Run a command of this machine."""
    subprocess.run(words, check=True)


if __name__ == "__main__":
    sys.exit(main())
