"""Private network, mount and PID namespaces for a process and everything it starts.

They need root. Where the kernel lets users make namespaces, another user becomes root inside a
user namespace of its own.
"""

from __future__ import annotations

import os
import subprocess

import psutil

from tests.support.patience import PATIENCE_S

PARTS = ("--net", "--mount", "--pid")
LIFE = ("--fork", "--mount-proc", "--kill-child")
NEEDED = "mount -t tmpfs tmpfs /var/run && ip link set lo up"
"""What a machine does first."""


class NamespaceError(RuntimeError):
    """Nobody may make namespaces here; the message says what to do."""


def make_namespaces() -> list[str]:
    """Return the words before a command that run it as the first process of new namespaces."""
    return ["unshare", *_if_not_root("--user", "--map-root-user"), *PARTS, *LIFE]


def enter_namespaces(unshare_pid: int) -> list[str]:
    """Return the words before a command that run it beside the first process.

    Args:
        unshare_pid: The process that `make_namespaces` has become.
    """
    first = psutil.Process(unshare_pid).children()[0].pid
    user = _if_not_root("--user", "--preserve-credentials")
    return ["nsenter", f"--target={first}", *user, *PARTS, "--"]


def check_namespaces() -> None:
    """Find out whether namespaces can be made here.

    Raises:
        NamespaceError: They cannot.
    """
    try:
        tried = subprocess.run(
            [*make_namespaces(), "sh", "-c", NEEDED],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        complaint = "there is no `unshare`"
    else:
        if tried.returncode == 0:
            return
        complaint = tried.stderr.strip() or f"`unshare` ended with {tried.returncode}"
    raise NamespaceError(
        f"A cluster of this test lives in namespaces of its own, and {complaint}. Run the test as "
        "root on Linux with util-linux and iproute2, or in a container with CAP_SYS_ADMIN and "
        "CAP_NET_ADMIN, or allow unprivileged user namespaces."
    )


def _if_not_root(*words: str) -> tuple[str, ...]:
    return words if os.geteuid() else ()
