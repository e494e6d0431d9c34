"""One container as processes in namespaces of their own.

A PID namespace makes a pod one thing: when its first process ends, the kernel ends all others,
and nothing in it sees a process of another pod. A mount namespace gives it a `/tmp/ray` of its
own. The network is the machine's, with an address per pod.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kubernetes.confinement import Confinement, Folders


class PodProcess:
    """A running container; it ends with its first process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        ray_folder: Path,
        log: Path,
        confinement: Confinement,
        folders: Folders,
    ) -> None:
        self._environ = dict(environ)
        self._log = log
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with log.open("ab") as output:
            self._unshare = subprocess.Popen(
                [*unshare, *confinement.enter(command, ray_folder, folders)],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def first_pid(self) -> int | None:
        """The container's first process as the machine sees it; None before and after its life."""
        pid = self._unshare.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def exit_code(self) -> int | None:
        """Return how the container ended, as a shell would say it; None while it runs."""
        code = self._unshare.poll()
        return None if code is None else code % 256 if code >= 0 else 128 - code

    def run_inside(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Start another command in the container; None if it has just ended."""
        if (first := self.first_pid) is None:
            return None
        with self._log.open("ab") as output:
            return subprocess.Popen(
                ["nsenter", f"--target={first}", "--mount", "--pid", "--", *command],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def terminate(self) -> None:
        """Ask the first process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the container at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if (first := self.first_pid) is not None:
            try:
                os.kill(first, number)
            except ProcessLookupError:
                return
