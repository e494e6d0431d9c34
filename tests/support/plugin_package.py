"""The example of `docs/plugins.md` as a package that is installed in a folder of its own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
PACKAGE = "your_package"


def blocks(language: str) -> list[str]:
    """Return the blocks of code of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def settings_file() -> str:
    """Return the settings file of the page."""
    (text,) = [block for block in blocks("toml") if block.startswith("# neve.toml")]
    return text


def install(folder: Path) -> None:
    """Put the planner of the page into a folder, as an installed package with entry points.

    Args:
        folder: To be named in `PYTHONPATH`.
    """
    (code,) = [block for block in blocks("python") if "class SmallFilesPlanner" in block]
    (project,) = [block for block in blocks("toml") if block.startswith("# your pyproject.toml")]
    points = tomllib.loads(project)["project"]["entry-points"]
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {at}" for name, at in names.items()))
    ]
    package, metadata = folder / PACKAGE, folder / f"{PACKAGE}-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "planners.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
