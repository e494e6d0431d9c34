"""An older release of this project, beside the one that is tested.

`tests/data/older_release.tar.xz` has the packages `common`, `compactor` and `coordinator` as they
were before compactors were scaled. It was made with
`git archive 46423f7 common compactor coordinator | xz -9e`. What runs with the folder first in
`PYTHONPATH` is of that release. The coordinator is there because Ray imports an actor's class
where it is called.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "data" / "older_release.tar.xz"


def older_release(folder: Path) -> Path:
    """Unpack the older release and return where it is.

    Args:
        folder: One that is empty or does not exist.
    """
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return folder
