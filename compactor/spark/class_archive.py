"""The class path of an application's JVMs, and the archive from which they load their classes.

A JVM of Spark loads about 10,000 classes from jars and verifies their code, which takes half of the
processor time of its start. With an archive (class data sharing) a JVM maps them into memory. The
archive is made once for each Java and set of jars, by a process that the first driver starts, and
that goes on when the driver or its stack ends:

    python -m compactor.spark.class_archive

It is stored in the environment that the jars are in, and can be deleted at any time. Its name
contains a digest of what it was made from, and its size, because Java 17 crashes on an archive that
was cut off. Java itself checks all else, and ignores an archive that does not fit.
"""

import fcntl
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

LIST = "static/classes.xz"
"""Names of the classes that both JVMs load until the first jobs have ended; see
`scripts/class_list.py`."""
FOLDER = Path(sys.prefix, "share", "neve")
ARCHIVES_MAX = 2
"""Archives that are kept: of an environment that is used with two versions of Java."""
MAKE_WAIT_MAX_S = 300.0
NICENESS = 19
DETACH = "--detach"
"""Argument of a process that another process goes on for."""
OF_A_STACK = ("NEVE_", "RAY_")
"""First letters of variables by which the processes of a stack are recognised and ended."""


def class_path() -> str:
    """Return the class path of every JVM of an application: RayDP's jars first, as it requires.

    The launcher of the JVM replaces the asterisk by Spark's jars.
    """
    spark = os.environ.get("SPARK_HOME") or package_folder("pyspark")
    raydp, ray = (sorted(package_folder(name).glob("jars/*.jar")) for name in ("raydp", "ray"))
    return os.pathsep.join(map(str, (*raydp, Path(spark, "jars", "*"), *ray)))


def package_folder(package: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent


def archive_options(folder: Path = FOLDER) -> list[str]:
    """Return the options with which a JVM uses the archive; none if there is no whole archive.

    Args:
        folder: The folder of archives.
    """
    key = _key()
    for archive in folder.glob(_name(key, "*")):
        size_bytes = archive.stat().st_size
        if size_bytes and archive.name == _name(key, size_bytes):
            return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
    return []


def make_in_background(folder: Path = FOLDER) -> None:
    """Start a process that makes the archive, if there is none.

    The process belongs to no stack. Otherwise it would be ended with a stack of a few minutes, such
    as that of `neve demo`, and each next one would begin anew.

    Args:
        folder: The folder of archives.
    """
    if not list(folder.glob(_name(_key(), "*"))):
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(OF_A_STACK)}
        command = [sys.executable, "-m", "compactor.spark.class_archive", DETACH, str(folder)]
        run = partial(subprocess.run, command, stdin=subprocess.DEVNULL, env=kept, check=False)
        threading.Thread(target=run, daemon=True, name="classes").start()


def make_archive(folder: Path = FOLDER) -> None:
    """Make the archive unless there is one, or another process makes it.

    If Java makes none, or only a part, an empty file prevents further attempts.

    Args:
        folder: The folder of archives.
    """
    key = _key()
    with suppress(OSError), _one_at_a_time(folder):
        if list(folder.glob(_name(key, "*"))):
            return
        for rest in folder.glob("*.new"):
            rest.unlink()
        made = folder / f"{key}.new"
        if not _is_dumped(made):
            made.unlink(missing_ok=True)
        made.touch()
        with made.open("rb") as written:  # Java makes it read-only.
            os.fsync(written)  # A power failure after the new name leaves the content whole.
        made.rename(folder / _name(key, made.stat().st_size))
        archives = sorted(folder.glob(_name("*", "*")), key=lambda path: path.stat().st_mtime)
        for archive in archives[:-ARCHIVES_MAX]:
            archive.unlink()


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder.

    Raises:
        OSError: Another process holds it, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _is_dumped(made: Path) -> bool:
    """Let Java write an archive; return whether it has written all of it."""
    # The temporary folder of a stack ends with the stack.
    with tempfile.NamedTemporaryFile(dir=made.parent, suffix=".new") as names:
        names.write(_names())
        names.flush()
        options = [f"-XX:SharedClassListFile={names.name}", f"-XX:SharedArchiveFile={made}"]
        # Heap objects are archived only with this collector; other collectors can load them.
        command = [_java(), "-Xshare:dump", "-XX:+UseG1GC", *options, "-cp", class_path()]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                cwd=made.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MAKE_WAIT_MAX_S,
                check=False,
            )
            return done.returncode == 0
    return False


def _java() -> str:
    """Return the launcher that starts the JVMs of applications."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"


def _names() -> bytes:
    return lzma.decompress((files("compactor.spark") / LIST).read_bytes())


def _name(key: str, size_bytes: int | str) -> str:
    return f"classes-{key}-{size_bytes}.jsa"


def _key() -> str:
    """Return a digest of what an archive depends on: Java, jars, list of classes."""
    home = Path(_java()).resolve().parent.parent
    made_of = [*home.glob("lib/server/libjvm.*"), home / "release"]
    for entry in class_path().split(os.pathsep):
        made_of += Path(entry).parent.glob("*.jar") if entry.endswith("*") else [Path(entry)]
    digest = hashlib.sha256((files("compactor.spark") / LIST).read_bytes())
    for path in sorted(made_of):
        with suppress(OSError):
            found = path.stat()
            digest.update(f"{path} {found.st_size} {int(found.st_mtime)}\n".encode())
    return digest.hexdigest()[:16]


def main() -> None:
    """Make the archive, with low priority: nothing waits for it."""
    if sys.argv[1:2] == [DETACH]:
        if os.fork():
            return
        os.setsid()
    os.nice(NICENESS)
    make_archive(*map(Path, sys.argv[2:]))


if __name__ == "__main__":
    main()
