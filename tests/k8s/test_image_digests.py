"""Digests of images are written as the user's registry client has them, and no other."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from scripts.image_digests import (
    DIGEST,
    DOCKERFILE,
    OVERLAY,
    STORE,
    DigestError,
    client_of,
    pin,
)
from tests.support.manifests import ROOT

BASE, OTHER = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"
MALFORMED = ("", "sha256:abc", f"sha256:{'A1' * 32}", f"sha512:{'a1' * 32}", f"{BASE}\n{OTHER}")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for path in (DOCKERFILE, OVERLAY, STORE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tmp_path / path)
    return tmp_path


def client(folder: Path, base: str, store: str) -> list[str]:
    """Return a registry client that knows two images."""
    program = folder / "client"
    program.write_text(
        f"#!/bin/sh\ncase $2 in rayproject/ray:*) printf %s '{base}';; "
        f"valkey/valkey:*) printf %s '{store}';; *) exit 1;; esac\n"
    )
    program.chmod(0o755)
    return [str(program), "digest"]


def test_both_images_get_the_digest_that_the_client_prints(sources: Path) -> None:
    for base, store in ((BASE, OTHER), (OTHER, BASE)):  # and again, when the tag has moved
        pin(sources, client(sources, base, store))

        dockerfile = (sources / DOCKERFILE).read_text("utf-8")
        assert re.findall(r"^ARG RAY_IMAGE=(\S+)$", dockerfile, re.M) == [
            f"rayproject/ray:2.60.0-py311@{base}"
        ]
        images = yaml.safe_load((sources / OVERLAY).read_text("utf-8"))["images"]
        assert {"name": "valkey/valkey", "digest": store} in images
        assert len(images) == 2


@pytest.mark.parametrize("malformed", MALFORMED)
def test_what_is_no_digest_is_refused_and_nothing_is_written(sources: Path, malformed: str) -> None:
    before = [(sources / path).read_text("utf-8") for path in (DOCKERFILE, OVERLAY)]

    for answers in ((BASE, malformed), (malformed, BASE)):
        with pytest.raises(DigestError, match="expected sha256:<64 hex digits>"):
            pin(sources, client(sources, *answers))
    assert [(sources / path).read_text("utf-8") for path in (DOCKERFILE, OVERLAY)] == before


def test_without_a_client_it_is_said_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(DigestError, match="install crane, skopeo, docker, or name one"):
        client_of([])


def test_a_digest_in_the_sources_is_well_formed() -> None:
    files = [ROOT / DOCKERFILE, *sorted((ROOT / "k8s").rglob("*.yaml"))]
    named = [
        digest
        for file in files
        for digest in re.findall(
            r"(?:@|digest: *)(sha\d+:\S*)", re.sub(r"#.*", "", file.read_text("utf-8"))
        )
    ]

    assert not [digest for digest in named if not DIGEST.fullmatch(digest)]
