"""Runs `k8s/trial.sh` with small programs in the place of docker, kind, helm and kubectl.

Each writes down its words, prints a line and succeeds. `answers` replace that for some calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.manifests import ROOT

TRIAL = ROOT / "k8s" / "trial.sh"
TOOLS = ("docker", "kind", "kubectl", "helm", "openssl")
SYSTEM = "bash sh basename dirname env grep mktemp rm sed seq tail tr uname"
ANSWERS = (
    "docker info: echo 8 16800000000",
    "openssl rand: echo 0123456789abcdef",
    """kubectl --count: echo '{"rows": 100}'""",
    """kubectl exec: echo '  "path": "a",'""",
)
"""What the trial reads. Of several answers for a call, the first one counts."""
PROGRAM = """#!/bin/sh
program=$(basename "$0")
printf '%s' "$program" >> "$FOLDER/calls"
for word in "$@"; do
    printf '\\037%s' "$word" >> "$FOLDER/calls"
    case $word in --from-env-file=*) sed "s|^|$secret |" "${word#*=}" >> "$FOLDER/secrets";; esac
    secret=$word
done
printf '\\n' >> "$FOLDER/calls"
"""


class Trial:
    """The script, and what it has called."""

    def __init__(
        self,
        folder: Path,
        *,
        tools: Sequence[str] = TOOLS,
        answers: Sequence[str] = (),
    ) -> None:
        """Write the programs.

        Args:
            folder: For the programs and what they write down.
            tools: Those that are installed.
            answers: Lines `PROGRAM WORD: COMMAND`: what a call with this word runs instead.
        """
        self.folder = folder
        for name in SYSTEM.split():
            if not (folder / name).exists():
                (folder / name).symlink_to(str(shutil.which(name)))
        for tool in tools:
            lines = [PROGRAM]
            for answer in (*answers, *ANSWERS):
                call, _, command = answer.partition(": ")
                program, word = call.split()
                if program == tool:
                    lines.append(f'case " $* " in *" {word} "*) {command}\nexit;; esac\n')
            (folder / tool).write_text("".join([*lines, "echo done by $program\n"]))
            (folder / tool).chmod(0o755)

    def run(self, *options: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        variables = {
            "PATH": str(self.folder),
            "FOLDER": str(self.folder),
            "HOME": os.environ["HOME"],
        }
        return subprocess.run(
            ["bash", TRIAL, *options],
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def calls(self) -> list[list[str]]:
        """Return the words of each call, in order."""
        file = self.folder / "calls"
        return (
            [line.split("\037") for line in file.read_text().splitlines()] if file.exists() else []
        )

    def secrets(self) -> set[tuple[str, str]]:
        """Return name and key of each secret."""
        lines = (self.folder / "secrets").read_text().splitlines()
        return {(line.split()[0], line.split()[1].partition("=")[0]) for line in lines}
