"""What a stack keeps on disk: a folder with a file that says what runs, and a temporary one.

The temporary folder holds what lives as long as the stack: sockets, Ray's session, scratch of
Spark.
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
from neve.local.processes import ProcessRef

# ----------------------------------------------------------------------------- The temporary folder


PREFIX = "neve-"
SOCKET_CHARACTERS_MAX = 103
"""Longest path of a socket that every system takes."""
RAY_CHARACTERS = 64
"""What Ray adds to its folder for its sockets."""
OWN_CHARACTERS = len(f"/{PREFIX}01234567/ray")
BASE_CHARACTERS_MAX = SOCKET_CHARACTERS_MAX - RAY_CHARACTERS - OWN_CHARACTERS


def base_folder(usual: Path | None = None) -> Path:
    """Return where temporary files go; its name leaves room for Ray's sockets.

    Args:
        usual: Where they go if its name is short enough; the system's choice if left out.

    Raises:
        ConfigError: Others may replace what is in it.
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
    """Return a folder that does not exist yet, in what `base_folder` has returned."""
    return base / f"{PREFIX}{secrets.token_hex(4)}"


def make_private(folder: Path) -> None:
    """Make a folder for nobody but its owner, or close one of ours that others may enter.

    Args:
        folder: Where; the folders above it are made likewise if they are missing.

    Raises:
        ConfigError: It is somebody else's, or others may replace it.
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
    """Return whether another user could rename or remove what a folder holds."""
    found = folder.stat()
    open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(open_to_others) and not found.st_mode & stat.S_ISVTX


def remove_folder(folder: Path) -> None:
    """Remove a stack's folder; anything else that a state file may name is left alone."""
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------- The folder that stays


FORMAT = 2
LOCK_TRIES_MAX, LOCK_PAUSE_S = 20, 0.1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class StackState:
    """What was started so far; `ready` once everything answered."""

    name: str
    mark: str
    started_s: float
    private_folder: str
    """Of what is removed with its processes."""
    ready: bool = False
    redis_url: str = ""
    ray_address: str = ""
    gateway_url: str = ""
    java_home: str = ""
    processes: tuple[ProcessRef, ...] = ()

    @property
    def ray_folder(self) -> Path:
        """Ray's sessions."""
        return Path(self.private_folder) / "ray"

    @property
    def temporary(self) -> Path:
        """Temporary files of its processes."""
        return Path(self.private_folder) / "tmp"

    @property
    def redis_socket(self) -> Path:
        """Where Redis listens; in a folder with a short name, which sockets need."""
        return Path(self.private_folder) / "redis.sock"

    def has_role(self, role: str) -> bool:
        """Return whether a process was started with this role."""
        return any(p.role == role for p in self.processes)

    def role_alive(self, role: str) -> bool:
        """Return whether the process with this role still runs."""
        return any(p.role == role and p.alive() for p in self.processes)

    def running(self) -> bool:
        """Return whether the stack came up, and lives or is being repaired."""
        redis_lives = self.role_alive("redis") or not self.has_role("redis")
        lives = redis_lives and self.role_alive("raylet")
        return self.ready and (lives or self.role_alive("supervisor"))

    def lacks_supervisor(self) -> bool:
        """Return whether of a stack that came up the supervisor has ended, and not all parts."""
        if not self.ready or not self.has_role("supervisor") or self.role_alive("supervisor"):
            return False
        return any(process.alive() for process in self.processes)

    def with_processes(self, *added: ProcessRef) -> Self:
        """Return the state with more processes."""
        return replace(self, processes=(*self.processes, *added))

    def without(self, *roles: str) -> Self:
        """Return the state without the processes of these roles."""
        left = tuple(process for process in self.processes if process.role not in roles)
        return replace(self, processes=left)


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
            raise RequestError(
                f"stack name {name!r} is invalid: expected 1 to 40 lower-case letters, digits"
                " and dashes"
            )
        base = home or Path(environ.get("NEVE_HOME") or Path.home() / ".neve")
        return cls(base.expanduser().absolute() / name)

    @classmethod
    def started(cls, home: Path | None, environ: Mapping[str, str]) -> list[Self]:
        """Return the folders of all stacks that run, or were never ended, by name.

        Args:
            home: Where all stacks live; NEVE_HOME or `~/.neve` if left out.
            environ: Where NEVE_HOME is looked up.
        """
        base = cls.of(home, "any", environ).path.parent
        return [cls(path.parent) for path in sorted(base.glob("*/state.json"))]

    @classmethod
    def known(cls, home: Path | None, environ: Mapping[str, str]) -> list[Self]:
        """Return the folders of all stacks that have left something, by name.

        Args:
            home: Where all stacks live; NEVE_HOME or `~/.neve` if left out.
            environ: Where NEVE_HOME is looked up.
        """
        base = cls.of(home, "any", environ).path.parent
        return [cls(path.parent) for path in sorted(base.glob("*/logs"))]

    @property
    def state_file(self) -> Path:
        """What runs."""
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
        """Who has changed what."""
        return self.path / "audit.jsonl"

    @property
    def ray_token_file(self) -> Path:
        """The token that Ray's processes show each other."""
        return self.path / "ray_token"

    @property
    def store_url_file(self) -> Path:
        """Address of Redis with its password, for the actors."""
        return self.path / "store_url"

    @property
    def repairs_file(self) -> Path:
        """What is down, as the supervisor sees it; absent: nothing is."""
        return self.path / "repairs.json"

    @property
    def settings_file(self) -> Path:
        """What the stack was started with; secrets are hidden."""
        return self.path / "settings.json"

    @property
    def redis(self) -> Path:
        """Settings and data of Redis."""
        return self.path / "redis"

    @property
    def tables(self) -> Path:
        """Where tables may be, of all that is here."""
        return self.path / "tables"

    @property
    def locations_file(self) -> Path:
        """Where else tables may be, as operators have named it."""
        return self.path / "locations"

    @property
    def logs(self) -> Path:
        """Output of what was started."""
        return self.path / "logs"

    def make(self) -> None:
        """Create the folders, for nobody but their owner."""
        with self._writing():
            for folder in (self.path, self.redis, self.logs):
                make_private(folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say of a folder that cannot be written which one it is, and what to do."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the folder of stack {self.path.name!r}, {self.path}, cannot be written:"
                f" {error.strerror or error}; choose another folder with NEVE_HOME or --home"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stack against another `up` or `down`, also one that crashes."""
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
        """Return what was last written, or None if nothing runs."""
        try:
            fields = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"state file {self.state_file} cannot be read: {error}") from None
        return _decode(fields, self.state_file)

    def save_settings(self, shown: Sequence[Mapping[str, Any]]) -> None:
        """Write down what the stack is started with."""
        write_secret(self.settings_file, json.dumps(list(shown), indent=1))

    def load_settings(self) -> list[dict[str, Any]]:
        """Return what the stack was started with; nothing if that was never written."""
        try:
            return list(json.loads(self.settings_file.read_text()))
        except (OSError, ValueError):
            return []

    def save(self, state: StackState) -> None:
        """Replace the state file, completely or not at all."""
        write_secret(self.state_file, json.dumps({"format": FORMAT, **asdict(state)}, indent=1))

    def secret(self, file: Path) -> str:
        """Return the secret in a file, drawn now if there is none yet."""
        if not file.exists():
            write_secret(file, secrets.token_urlsafe(32))
        return file.read_text().strip()


def _locked(lock: IO[str]) -> bool:
    """Lock a file; wait for a moment, for a supervisor writes the state down now and then."""
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
    """Write a file that only its owner may read, completely or not at all."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as output:
            output.write(text)
    except OSError:  # Of a full disk, no part of a file may be left.
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(file)


def _decode(fields: dict[str, Any], file: Path) -> StackState:
    """Return the state from its JSON form."""
    if (version := fields.pop("format", None)) == 1:
        # Ray's sessions lay directly in the folder.
        fields["private_folder"] = fields.pop("ray_folder")
    elif version != FORMAT:
        raise ConfigError(f"state file {file} has another format: use the version that wrote it")
    processes = tuple(ProcessRef(**p) for p in fields.pop("processes"))
    return StackState(**fields, processes=processes)
