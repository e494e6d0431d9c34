"""What is committed speaks of the product alone: no machine, no index, no credentials."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tests.tidy.tree import ROOT, name_of, text_files

# Spelled in pieces, so that this file does not name them itself.
INDEX_HOSTS = tuple(".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org")))
PEOPLE = re.compile(r"(?<![\w.-])/(?:root|home/(?!ray\b)\w+|Users/\w+)/")
KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[ps]_\w{36}\b")


def places_of_this_machine() -> set[str]:
    """Return the folders that mean something here alone."""
    places = {ROOT, Path.home()}
    if sys.prefix != sys.base_prefix:
        places.add(Path(sys.prefix))
    common = {Path("/"), Path("/tmp"), Path("/home"), Path(tempfile.gettempdir())}
    if ROOT.parent not in common:
        places.add(ROOT.parent)
    return {f"{place}/" for place in places - common}


def offences(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}: {match.group()}"
        for path, text in text_files()
        for match in pattern.finditer(text)
    ]


def test_no_file_names_a_path_of_this_machine() -> None:
    here = "|".join(rf"(?<![\w.-]){re.escape(place)}" for place in places_of_this_machine())

    assert not offences(re.compile(here))
    assert not offences(PEOPLE)


def test_no_address_of_a_package_index() -> None:
    assert not offences(re.compile("|".join(map(re.escape, INDEX_HOSTS))))
    for path in (ROOT / "requirements").iterdir():
        assert not re.search(
            r"://|^\s*-(?:i|f|-index|-extra-index|-find-links)", path.read_text("utf-8"), re.M
        )


def test_no_file_holds_credentials() -> None:
    assert not offences(KEY)
