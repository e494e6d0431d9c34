"""The command line for tests: runs `neve` in this process, with an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import Result

from tests.support.command_line import invoke


class Shell:
    """Runs `neve` and looks at its exit code and at what it says."""

    def __init__(self, home: Path, **environ: str | None) -> None:
        cleared = dict.fromkeys(("NEVE_URL", "NEVE_TOKEN", "NEVE_CONFIG", "NEVE_STACK"))
        self.environ: dict[str, str | None] = {**cleared, "NEVE_HOME": str(home), **environ}

    def run(self, *words: str, code: int = 0, says: str | None = None) -> Result:
        done = invoke(words, self.environ)
        assert done.exit_code == code, (words, done.output, done.exception)
        assert "Traceback" not in done.output
        text = " ".join(done.output.split())
        assert says is None or says in text, done.output
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)
