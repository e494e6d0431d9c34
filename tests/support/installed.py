"""The wheel, installed alone in a folder outside the checkout: what users run.

The sdist is made of the checkout, the wheel of the sdist, and the wheel is installed without its
requirements, which the environment of the tests has. All of it takes seconds and is done once in
a test session; workers of pytest-xdist share it.

    release = installation()
    release.environ()   # processes import from the folder and cannot reach the checkout
    release.neve        # its command line
    installation("61053eeb")  # the same of an earlier commit
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from neve.local.machine import find_java

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "compactor", "coordinator", "neve")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)
SESSION_VARIABLE = "TESTS_OF_NEVE_FOLDER"
"""Folder of this test session, which tests/conftest.py makes and removes."""
GIT = ["git", "-c", "safe.directory=*"]  # also where another user made the checkout
BUILD_MAX_S = 300
BUILD_SDIST = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Installation:
    """A built release, and its wheel in a folder of its own."""

    sdist: Path
    wheel: Path
    packages: Path
    """The four packages, their metadata and `bin/neve`."""
    shadow: Path
    """Modules that keep the environment's editable installation from being loaded."""
    test_modules: Path
    """Has `tests` and nothing else of the checkout, for programs that need its support."""

    @classmethod
    def below(cls, folder: Path) -> Self:
        """Return where everything is in the folder of a build."""
        return cls(
            sdist=next(folder.glob("dist/*.tar.gz")),
            wheel=next(folder.glob("dist/*.whl")),
            packages=folder / "packages",
            shadow=folder / "shadow",
            test_modules=folder / "test_modules",
        )

    @property
    def neve(self) -> str:
        """The command line."""
        return str(self.packages / "bin" / "neve")

    def environ(
        self, base: Mapping[str, str] | None = None, *, with_tests: bool = False
    ) -> dict[str, str]:
        """Return an environment in which Python imports from here and not from the checkout.

        Args:
            base: What else is inherited; this process's environment if left out.
            with_tests: Whether `tests` can be imported too.
        """
        inherited = dict(os.environ if base is None else base)
        own = [self.packages, self.shadow, *([self.test_modules] if with_tests else [])]
        kept = [part for part in inherited.get("PYTHONPATH", "").split(os.pathsep) if part]
        outside = [part for part in kept if Path(part).resolve() != ROOT]
        programs = [self.packages / "bin", Path(sys.executable).parent, inherited.get("PATH", "")]
        return inherited | {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*map(str, own), *outside])),
            "PYTHONSAFEPATH": "1",  # `-m` and `-c` look in no working folder
            "PATH": os.pathsep.join(map(str, programs)),
        }


@cache
def installation(commit: str = "") -> Installation:
    """Return an installation of this test session; the first caller makes it.

    Args:
        commit: What is installed; the files of the checkout if empty.
    """
    session = session_folder()
    folder = session / f"installation{commit}"
    with _locked(session / f"{folder.name}.lock"):
        if not folder.exists():
            unfinished = session / f"unfinished{commit}"
            shutil.rmtree(unfinished, ignore_errors=True)
            if commit:
                _copy_commit(commit, unfinished / "sources")
            else:
                copy_sources(unfinished / "sources")
            _make(unfinished)
            if commit:
                _add_data(unfinished)
            unfinished.rename(folder)
    return Installation.below(folder)


@cache
def make_class_archive() -> None:
    """Make the archive from which JVMs load their classes, as the build of the image does.

    It is there already, but in a new environment: stacks that start without it take longer.
    """
    java = {"JAVA_HOME": str(find_java(os.environ).home)}
    make = "from compactor.spark.class_archive import make_archive; make_archive()"
    with _locked(session_folder() / "classes.lock"):
        subprocess.run(
            [sys.executable, "-c", make],  # Not as a program, which has a low priority.
            cwd=ROOT,
            env=os.environ | java,
            timeout=BUILD_MAX_S,
            check=True,
        )


def has_commit(commit: str) -> bool:
    """Return whether the checkout has a commit; a shallow clone or an archive has not."""
    looked_up = [*GIT, "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(looked_up, cwd=ROOT, capture_output=True, check=False).returncode == 0


def tracked_files() -> set[str]:
    """Return the files of the four packages: what Git tracks or would track.

    Where there is no `.git`, as in an unpacked archive, that is every file but compiled modules.
    """
    if (ROOT / ".git").exists():
        listed = [*GIT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = _run([*listed, "--", *PACKAGES], ROOT).split("\0")
        return {name for name in found if (ROOT / name).is_file()}
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }


def copy_sources(target: Path, sources: tuple[str, ...] = SOURCES) -> None:
    """Copy what a build reads: a build writes into its sources.

    Args:
        target: A folder that this makes.
        sources: Files and folders of the checkout.
    """
    target.mkdir(parents=True)
    others = {name for name in sources if name not in PACKAGES}
    for name in sorted(tracked_files() | others):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, target / name)


def _copy_commit(commit: str, target: Path) -> None:
    """Unpack what a build reads, as it is in a commit."""
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    _run([*GIT, "archive", "-o", str(archive), commit, "--", *SOURCES], ROOT)
    unpack(archive, target)


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive of this project, with a filter where Python has one: 3.11.2 has none."""
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(target)


def _add_data(folder: Path) -> None:
    """Add the files that are no modules: wheels of older releases lack some."""
    for package in PACKAGES:
        source, target = folder / "sources" / package, folder / "packages" / package
        shutil.copytree(source, target, dirs_exist_ok=True)


def _make(folder: Path) -> None:
    """Build sdist and wheel of the sources in a folder, and install the wheel."""
    sources, dist = folder / "sources", folder / "dist"
    dist.mkdir()
    _run([sys.executable, "-c", BUILD_SDIST, str(dist)], sources)
    (sdist,) = dist.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--quiet"]
    _run([*pip, "wheel", "--no-build-isolation", *alone, "-w", str(dist), str(sdist)], folder)
    (wheel,) = dist.glob("*.whl")
    target = ["--target", str(folder / "packages")]
    _run([*pip, "install", *alone, *target, str(wheel)], folder)
    _shadow_editable(folder / "shadow")
    (folder / "test_modules").mkdir()
    (folder / "test_modules" / "tests").symlink_to(ROOT / "tests")


def _shadow_editable(folder: Path) -> None:
    """Put empty finders in front of those by which an editable installation is found."""
    folder.mkdir()
    site = Path(sysconfig.get_path("purelib"))
    for finder in site.glob("__editable___neve_*_finder.py"):
        (folder / finder.name).write_text("def install() -> None: ...\n", "utf-8")


@cache
def session_folder() -> Path:
    """Return the folder of the test session, or one that ends with this process."""
    if SESSION_VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="neve-installation-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)
    return Path(os.environ[SESSION_VARIABLE])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(words: list[str], folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        words,
        cwd=folder,
        env=environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=BUILD_MAX_S,
        check=False,
    )
    assert ran.returncode == 0, f"{words}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
