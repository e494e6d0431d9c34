"""What a container may do: what the `securityContext` of a manifest asks for, by the kernel.

A container's user is the only one of a user namespace, so that the files of the tests' user are
its own. It has no capability there, and cannot gain one. Where the root is read-only, `/tmp` is
the container's own, like the `emptyDir` of the manifests, and everything else is read-only but
Ray's folder and the folders that are named.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

RAY_FOLDER = Path("/tmp/ray")
ASIDE = "/run/aside"
"""Where folders of the machine's `/tmp` stand while the container's own takes its place."""
READ_ONLY = """
while read -r _ _ _ _ point _; do
    case "$point" in /proc*|/sys*|/dev*|/tmp%s) ;;
    *) mount -o remount,bind,ro "$point" 2> /dev/null || test "$point" != / ;;
    esac
done < /proc/self/mountinfo
"""


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of the machine that a container with a read-only root sees below its `/tmp`."""

    seen: Sequence[Path] = ()
    written: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a container may do."""

    user: int | None = None
    """None: the machine's root."""
    group: int | None = None
    read_only: bool = False
    unprivileged: bool = False
    """Without any capability, and without a way to one."""

    @classmethod
    def of(cls, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Self:
        """Return what a manifest asks for.

        Args:
            pod: The pod's `spec`.
            container: One of its containers; the autoscaler's options serve as well.
        """
        asked = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        return cls(
            user=asked.get("runAsUser"),
            group=asked.get("runAsGroup"),
            read_only=asked.get("readOnlyRootFilesystem", False),
            unprivileged=asked.get("allowPrivilegeEscalation") is False
            and asked.get("capabilities", {}).get("drop") == ["ALL"],
        )

    def enter(
        self, command: Sequence[str], ray_folder: Path | None = None, folders: Folders = Folders()
    ) -> list[str]:
        """Return the words that run a command so; they need a mount namespace of their own.

        Args:
            command: Program and arguments.
            ray_folder: Folder of the machine that is Ray's folder in the container.
            folders: What else the container sees.
        """
        lines = ["set -e"]
        if self.read_only:
            lines += _own_tmp([*folders.seen, *folders.written])
        if ray_folder is not None:
            lines.append(f"mkdir -p {ray_folder} {RAY_FOLDER}")
            lines.append(f"mount --bind {shlex.quote(str(ray_folder))} {RAY_FOLDER}")
        if self.read_only:
            writable = [*folders.written, RAY_FOLDER]
            lines += [READ_ONLY % "".join(f"|{shlex.quote(str(each))}" for each in writable)]
            lines.append("cd /tmp")
        return ["sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh", *self._as_user(command)]

    def _as_user(self, command: Sequence[str]) -> list[str]:
        words = ["setpriv", "--no-new-privs"] if self.unprivileged else []
        if self.user is not None:
            group = self.user if self.group is None else self.group
            # Capabilities end with the first program that a user other than root starts.
            words = ["unshare", "--user", f"--map-user={self.user}", f"--map-group={group}", *words]
        return [*words, *command]


def _own_tmp(folders: Sequence[Path]) -> list[str]:
    """Return lines that put an empty `/tmp` in the place of the machine's, with some folders."""
    before, after = [], []
    for number, folder in enumerate(map(str, folders)):
        quoted = shlex.quote(folder)
        before += [f"mkdir -p {ASIDE}/{number}", f"mount --bind {quoted} {ASIDE}/{number}"]
        after += [f"mkdir -p {quoted}", f"mount --bind {ASIDE}/{number} {quoted}"]
    return [*before, "mount -t tmpfs -o mode=1777 container /tmp", *after]
