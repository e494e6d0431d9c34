"""Copy the scripts of `requirements/npm` to where the console and its tests have them.

`npm ci` has installed them into a folder, and has compared them with the digests of the lock.
`make console-scripts` does both after the lock was changed. The copies are committed, so that
neither a build nor a test needs npm.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC, AXE = ROOT / "neve/console/static", ROOT / "tests/data/axe"
COPIES = {
    "htmx.org/dist/htmx.min.js": STATIC / "htmx.js",
    "htmx.org/dist/ext/hx-sse.min.js": STATIC / "hx-sse.js",
    "htmx.org/LICENSE": STATIC / "htmx.LICENSE.txt",
    "uplot/dist/uPlot.iife.min.js": STATIC / "uplot.js",
    "uplot/dist/uPlot.min.css": STATIC / "uplot.css",
    "uplot/LICENSE": STATIC / "uplot.LICENSE.txt",
    "axe-core/axe.min.js": AXE / "axe.min.js",
    "axe-core/LICENSE": AXE / "LICENSE.txt",
    "axe-core/LICENSE-3RD-PARTY.txt": AXE / "LICENSE-3RD-PARTY.txt",
}


def main(modules: Path) -> None:
    """Copy every file.

    Args:
        modules: The folder `node_modules`.
    """
    for source, target in COPIES.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(modules / source, target)
        sys.stdout.write(f"{target.relative_to(ROOT)}  from {source}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
