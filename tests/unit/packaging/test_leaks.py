"""What is committed speaks of the product alone: no machine, no index, no credentials."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tests.tidy.tree import CODE, ROOT, files_below, name_of

# Spelled in pieces, so that this file does not name them itself.
INDEX_HOSTS = "|".join(rf"{name}\.org" for name in ("py" + "pi", "python" + "hosted"))
PEOPLE = r"(?<![\w.-])/(?:root|home/(?!ray\b)\w+|Users/\w+)/"
KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[ps]_\w{36}\b"
OPTION_OF_INDEX = r"://|^\s*-(?:i|f|-index|-extra-index|-find-links)"


def places_of_this_machine() -> str:
    """Return a pattern of the folders that mean something here alone."""
    places = {ROOT, Path.home(), ROOT.parent}
    if sys.prefix != sys.base_prefix:
        places.add(Path(sys.prefix))
    places -= {Path("/"), Path("/tmp"), Path("/home"), Path(tempfile.gettempdir())}
    return "|".join(rf"(?<![\w.-]){re.escape(f'{place}/')}" for place in places)


def test_no_file_names_a_machine_a_package_index_or_credentials() -> None:
    pattern = re.compile("|".join((places_of_this_machine(), PEOPLE, INDEX_HOSTS, KEY)))
    made = {".git", ".coverage"}  # The latter by `make coverage`, with paths of its sources.
    top = (path for path in ROOT.iterdir() if path.is_file() and path.name not in made)
    texts = {
        name_of(path): path.read_bytes().decode("utf-8", "ignore")
        for path in (*top, *files_below((*CODE, "docs", "k8s", "requirements", ".ci")))
    }

    assert not [
        f"{name}: {m.group()}" for name, text in texts.items() for m in pattern.finditer(text)
    ]
    for name in (name for name in texts if name.startswith("requirements/")):
        assert not re.search(OPTION_OF_INDEX, texts[name], re.M), name
