"""A stack that runs from the installed wheel; the test's own process is only its client."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from neve.local import LocalStack, StackOptions
from neve.local.stack import DEFAULT_NAME
from tests.support.installed import installation, make_class_archive
from tests.support.patience import SERVICE_S

START = (
    "import pickle, sys; from neve.local import LocalStack;"
    " LocalStack.start(**pickle.loads(sys.stdin.buffer.read()))"
)
START_MAX_S = 4 * SERVICE_S


class InstalledStack(LocalStack):
    """Like the stack that it is, but none of its processes can import from the checkout."""

    @classmethod
    def start(
        cls,
        *,
        home: Path | None = None,
        name: str = DEFAULT_NAME,
        options: StackOptions | None = None,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Self:
        """Start a stack as `neve up` does: by a process of the installation, which ends.

        Raises:
            AssertionError: It did not start; the message has the process's errors.
        """
        make_class_archive()
        orders = {"home": home, "name": name, "options": options, **more}
        started = subprocess.run(
            [sys.executable, "-c", START],
            env=installation().environ(environ, with_tests=True),
            cwd=Path.home(),
            input=pickle.dumps(orders),
            stderr=subprocess.PIPE,
            timeout=START_MAX_S,
            check=False,
        )
        assert started.returncode == 0, started.stderr.decode(errors="replace")
        stack = cls.attach(home=home, name=name)
        assert stack is not None, f"stack {name} ended after its start: {home}"
        return stack

    def driver_environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a program of the tests that joins the cluster."""
        environ = super().driver_environ(os.environ if base is None else base)
        return installation().environ(environ, with_tests=True)
