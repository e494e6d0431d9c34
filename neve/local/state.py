"""What a stack keeps on disk: one folder per stack, one file that says what runs.

    <home>/<stack>/state.json   processes, addresses, secrets (0600)
                   token        bearer token of the gateway (0600), kept
                   ray_token    token of the Ray cluster (0600)
                   redis/       settings and append-only file, kept
                   logs/        output of what was started

`state.json` is written before the first process starts and after each step, so that
whatever a crash leaves behind can be found and ended.
"""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from common.errors import ConfigError
from neve.local.processes import ProcessRef

FORMAT = 1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class StackState:
    """What was started so far; `ready` once everything answered."""

    name: str
    mark: str
    started_s: float
    ray_folder: str
    ready: bool = False
    redis_url: str = ""
    ray_address: str = ""
    gateway_url: str = ""
    java_home: str = ""
    processes: tuple[ProcessRef, ...] = ()

    @property
    def temporary(self) -> Path:
        """Temporary files of its processes; removed with Ray's own."""
        return Path(self.ray_folder) / "tmp"

    def role_alive(self, role: str) -> bool:
        """Return whether the process with this role still runs."""
        return any(p.role == role and p.alive() for p in self.processes)

    def running(self) -> bool:
        """Return whether the stack came up and neither Redis nor Ray has died since."""
        return self.ready and self.role_alive("redis") and self.role_alive("raylet")

    def with_processes(self, *added: ProcessRef) -> Self:
        """Return the state with more processes."""
        return replace(self, processes=(*self.processes, *added))


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The folder of one stack; all paths of a stack are named here."""

    path: Path

    @classmethod
    def of(cls, home: Path | None, name: str, environ: Mapping[str, str]) -> Self:
        """Return the folder of a stack.

        Args:
            home: Where all stacks live; NEVE_HOME or `~/.neve` if left out.
            name: The stack's; lower-case letters, digits and dashes.
            environ: Where NEVE_HOME is looked up.
        """
        if NAME.fullmatch(name) is None:
            raise ConfigError(
                f"stack name {name!r} is not usable: "
                "wanted 1 to 40 lower-case letters, digits and dashes"
            )
        base = home or Path(environ.get("NEVE_HOME") or Path.home() / ".neve")
        return cls(base.expanduser().absolute() / name)

    @property
    def state_file(self) -> Path:
        """What runs."""
        return self.path / "state.json"

    @property
    def token_file(self) -> Path:
        """The bearer token of the gateway."""
        return self.path / "token"

    @property
    def ray_token_file(self) -> Path:
        """The token that Ray's processes show each other."""
        return self.path / "ray_token"

    @property
    def redis(self) -> Path:
        """Settings and data of Redis."""
        return self.path / "redis"

    @property
    def logs(self) -> Path:
        """Output of what was started."""
        return self.path / "logs"

    def make(self) -> None:
        """Create the folders, for nobody but their owner."""
        for folder in (self.path, self.redis, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stack against another `up` or `down`, also one that crashes."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"stack {self.path.name!r} is being started or stopped by another process: "
                    "wait for it and try again"
                ) from None
            yield

    def load(self) -> StackState | None:
        """Return what was last written, or None if nothing runs."""
        try:
            fields = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"state file {self.state_file} is not readable: {error}") from None
        return _decode(fields, self.state_file)

    def save(self, state: StackState) -> None:
        """Replace the state file, completely or not at all."""
        write_secret(self.state_file, json.dumps({"format": FORMAT, **asdict(state)}, indent=1))

    def secret(self, file: Path) -> str:
        """Return the secret in a file, drawn now if there is none yet."""
        if not file.exists():
            write_secret(file, secrets.token_urlsafe(32))
        return file.read_text().strip()


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner may read, completely or not at all."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(text)
    fresh.replace(file)


def _decode(fields: dict[str, Any], file: Path) -> StackState:
    """Return the state from its JSON form."""
    if fields.pop("format", None) != FORMAT:
        raise ConfigError(f"state file {file} has another format: use the version that wrote it")
    processes = tuple(ProcessRef(**p) for p in fields.pop("processes"))
    return StackState(**fields, processes=processes)
