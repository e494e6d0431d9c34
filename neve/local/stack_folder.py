"""The files of a stack: a permanent folder with the state file, and a temporary folder.

The temporary folder exists as long as the stack runs. It holds sockets, Ray's session and Spark's
scratch files.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import IO, Any, Self

from common.errors import ConfigError, RefusedError, RequestError
from neve.api.files import write_private
from neve.local.processes import ProcessRef

# ----------------------------------------------------------------------------- The temporary folder


PREFIX = "neve-"
SOCKET_CHARACTERS_MAX = 103
"""Longest socket path that every system accepts."""
RAY_CHARACTERS = 64
"""Length that Ray adds to its folder's path for its sockets."""
OWN_CHARACTERS = len(f"/{PREFIX}01234567/ray")
BASE_CHARACTERS_MAX = SOCKET_CHARACTERS_MAX - RAY_CHARACTERS - OWN_CHARACTERS


def base_folder(usual: Path | None = None) -> Path:
    """Return the folder for temporary files; its path is short enough for Ray's sockets.

    Args:
        usual: Preferred folder, used if its path is short enough; the system's if omitted.

    Raises:
        ConfigError: Other users may replace files in the folder.
    """
    usual = usual or Path(tempfile.gettempdir())
    base = usual if len(str(usual)) <= BASE_CHARACTERS_MAX else Path("/tmp")
    if others_may_replace(base):
        raise ConfigError(
            f"temporary folder {base} is open to every user of this machine and has no sticky bit: "
            f"choose another one with TMPDIR, or run `chmod +t {base}`"
        )
    return base


def new_folder(base: Path) -> Path:
    """Return a new random path inside the folder from `base_folder`."""
    return base / f"{PREFIX}{secrets.token_hex(4)}"


def make_private(folder: Path) -> None:
    """Create a folder that only its owner may enter, or restrict an existing folder to its owner.

    Args:
        folder: The folder; missing parent folders are created in the same way.

    Raises:
        ConfigError: The folder belongs to another user, or other users may replace it.
    """
    above = folder.parent
    if not above.exists():
        make_private(above)
    elif others_may_replace(above):
        raise ConfigError(
            f"folder {above} lets other users of this machine replace what is in it: "
            f"run `chmod go-w {above}`, or choose another one"
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    if (owner := folder.stat().st_uid) != os.geteuid():
        raise ConfigError(f"folder {folder} belongs to another user (uid {owner})")
    folder.chmod(0o700)


def others_may_replace(folder: Path) -> bool:
    """Return whether other users could rename or remove the files in a folder."""
    state = folder.stat()
    open_to_others = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(open_to_others) and not state.st_mode & stat.S_ISVTX


def remove_folder(folder: Path) -> None:
    """Remove a stack's temporary folder; ignore any other folder that a state file may name."""
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


# ----------------------------------------------------------------------------- The permanent folder


FORMAT = 2
LOCK_TRIES_MAX, LOCK_PAUSE_S = 20, 0.1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class StackState:
    """The parts that were started so far; `ready` is set once all of them have answered."""

    name: str
    mark: str
    started_s: float
    private_folder: str
    """The temporary folder, which is removed when the stack ends."""
    ready: bool = False
    redis_url: str = ""
    ray_address: str = ""
    gateway_url: str = ""
    java_home: str = ""
    processes: tuple[ProcessRef, ...] = ()

    @property
    def ray_folder(self) -> Path:
        """Folder of Ray's sessions."""
        return Path(self.private_folder) / "ray"

    @property
    def temporary(self) -> Path:
        """Folder for temporary files of the stack's processes."""
        return Path(self.private_folder) / "tmp"

    @property
    def redis_socket(self) -> Path:
        """The socket of Redis, in a folder with a short path as sockets require."""
        return Path(self.private_folder) / "redis.sock"

    def has_role(self, role: str) -> bool:
        """Return whether a process was started with this role."""
        return any(p.role == role for p in self.processes)

    def role_alive(self, role: str) -> bool:
        """Return whether the process with this role still runs."""
        return any(p.role == role and p.alive() for p in self.processes)

    def running(self) -> bool:
        """Return whether the stack was started completely, and is alive or being repaired."""
        redis_lives = self.role_alive("redis") or not self.has_role("redis")
        lives = redis_lives and self.role_alive("raylet")
        return self.ready and (lives or self.role_alive("supervisor"))

    def lacks_supervisor(self) -> bool:
        """Return whether a started stack has parts alive but its supervisor has ended."""
        if not self.ready or not self.has_role("supervisor") or self.role_alive("supervisor"):
            return False
        return any(process.alive() for process in self.processes)

    def with_processes(self, *added: ProcessRef) -> Self:
        """Return the state with more processes."""
        return replace(self, processes=(*self.processes, *added))

    def without(self, *roles: str) -> Self:
        """Return the state without the processes that have these roles."""
        left = tuple(process for process in self.processes if process.role not in roles)
        return replace(self, processes=left)


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The permanent folder of one stack, and the paths in it."""

    path: Path

    @classmethod
    def of(cls, home: Path | None, name: str, environ: Mapping[str, str]) -> Self:
        """Return the folder of a stack.

        Args:
            home: Folder of all stacks; NEVE_HOME or `~/.neve` if omitted.
            name: The stack's name: lower-case letters, digits and dashes.
            environ: Environment with NEVE_HOME.
        """
        if NAME.fullmatch(name) is None:
            raise RequestError(
                f"stack name {name!r} is invalid: expected 1 to 40 lower-case letters, digits"
                " and dashes"
            )
        base = home or Path(environ.get("NEVE_HOME") or Path.home() / ".neve")
        return cls(base.expanduser().absolute() / name)

    @classmethod
    def started(cls, home: Path | None, environ: Mapping[str, str]) -> list[Self]:
        """Return the folders of all stacks with a state file, sorted by name.

        Args:
            home: Folder of all stacks; NEVE_HOME or `~/.neve` if omitted.
            environ: Environment with NEVE_HOME.
        """
        base = cls.of(home, "any", environ).path.parent
        return [cls(path.parent) for path in sorted(base.glob("*/state.json"))]

    @classmethod
    def known(cls, home: Path | None, environ: Mapping[str, str]) -> list[Self]:
        """Return the folders of all stacks with logs, sorted by name.

        Args:
            home: Folder of all stacks; NEVE_HOME or `~/.neve` if omitted.
            environ: Environment with NEVE_HOME.
        """
        base = cls.of(home, "any", environ).path.parent
        return [cls(path.parent) for path in sorted(base.glob("*/logs"))]

    @property
    def state_file(self) -> Path:
        """The saved state of a running stack."""
        return self.path / "state.json"

    @property
    def token_file(self) -> Path:
        """The bearer token of the gateway."""
        return self.path / "token"

    @property
    def tokens_file(self) -> Path:
        """The named tokens of the gateway, as digests."""
        return self.path / "tokens.json"

    @property
    def audit_file(self) -> Path:
        """The audit log: which caller changed what."""
        return self.path / "audit.jsonl"

    @property
    def notified_file(self) -> Path:
        """Which messages were sent to operators."""
        return self.path / "notified.json"

    @property
    def ray_token_file(self) -> Path:
        """The token with which Ray's processes authenticate each other."""
        return self.path / "ray_token"

    @property
    def store_url_file(self) -> Path:
        """The address of Redis with its password, for the actors."""
        return self.path / "store_url"

    @property
    def repairs_file(self) -> Path:
        """The supervisor's list of parts that are down; missing if none is down."""
        return self.path / "repairs.json"

    @property
    def settings_file(self) -> Path:
        """The settings that the stack was started with; secrets are hidden."""
        return self.path / "settings.json"

    @property
    def redis(self) -> Path:
        """Settings and data of Redis."""
        return self.path / "redis"

    @property
    def tables(self) -> Path:
        """The only part of this folder in which tables are allowed."""
        return self.path / "tables"

    @property
    def locations_file(self) -> Path:
        """Further table locations that operators have allowed."""
        return self.path / "locations"

    @property
    def logs(self) -> Path:
        """Output of the processes."""
        return self.path / "logs"

    def make(self) -> None:
        """Create the folders; only their owner may enter them."""
        with self._writing():
            for folder in (self.path, self.redis, self.logs):
                make_private(folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise any write failure as a `ConfigError` that names the folder and a remedy."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the folder of stack {self.path.name!r}, {self.path}, cannot be written:"
                f" {error.strerror or error}; choose another folder with NEVE_HOME or --home"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the stack against a concurrent `up` or `down`; a crash releases the lock."""
        with self._writing():
            make_private(self.path)
            file = (self.path / "lock").open("w")
        with file as lock:
            if not _locked(lock):
                raise RefusedError(
                    f"stack {self.path.name!r} is being started or stopped by another process: "
                    "wait for it and try again"
                )
            yield

    def load(self) -> StackState | None:
        """Return the saved state, or None if there is none."""
        try:
            fields = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"state file {self.state_file} cannot be read: {error}") from None
        return _decode(fields, self.state_file)

    def save_settings(self, shown: Sequence[Mapping[str, Any]]) -> None:
        """Save the settings that the stack is started with."""
        write_secret(self.settings_file, json.dumps(list(shown), indent=1))

    def load_settings(self) -> list[dict[str, Any]]:
        """Return the settings that the stack was started with; empty if they cannot be read."""
        try:
            return list(json.loads(self.settings_file.read_text()))
        except (OSError, ValueError):
            return []

    def save(self, state: StackState) -> None:
        """Replace the state file atomically."""
        write_secret(self.state_file, json.dumps({"format": FORMAT, **asdict(state)}, indent=1))

    def secret(self, file: Path) -> str:
        """Return the secret in a file; generate the secret if the file is missing."""
        if not file.exists():
            write_secret(file, secrets.token_urlsafe(32))
        return file.read_text().strip()


def _locked(lock: IO[str]) -> bool:
    """Lock a file; retry for a short time, because a supervisor occasionally saves the state."""
    pause = Event()
    for _ in range(LOCK_TRIES_MAX):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause.wait(LOCK_PAUSE_S)
        else:
            return True
    return False


def write_secret(file: Path, text: str) -> None:
    """Atomically write a file that only its owner may read."""
    write_private(file, text.encode(), is_durable=False)


def _decode(fields: dict[str, Any], file: Path) -> StackState:
    """Return the state from its decoded JSON."""
    if (version := fields.pop("format", None)) == 1:
        # In format 1, Ray's sessions were directly in the temporary folder.
        fields["private_folder"] = fields.pop("ray_folder")
    elif version != FORMAT:
        raise ConfigError(f"state file {file} has another format: use the version that wrote it")
    processes = tuple(ProcessRef(**p) for p in fields.pop("processes"))
    return StackState(**fields, processes=processes)
