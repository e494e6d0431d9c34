"""Pin base and store images by digest, looked up with your own registry client.

    python -m scripts.image_digests                # crane, skopeo or docker: the first found
    python -m scripts.image_digests crane digest   # a command; the image is its last word

The base image of `k8s/image/Dockerfile` and the store's image of the overlay `production` are
looked up; each keeps its name, and gets the digest that the registry has for it today. Nothing is
written unless every answer is a digest. The sources have no digests: write your own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = Path("k8s/image/Dockerfile")
STORE = Path("k8s/base/ray-redis.yaml")
OVERLAY = Path("k8s/overlays/production/kustomization.yaml")
CLIENTS = {
    "crane": ["digest"],
    "skopeo": ["inspect", "--format", "{{.Digest}}"],
    "docker": ["buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}"],
}
BASE_IMAGE = re.compile(r"^(ARG RAY_IMAGE=)([\w./:-]+)(@\S+)?$", re.M)
STORE_IMAGE = re.compile(r"^ +image: (([\w./-]+):[\w.-]+)$", re.M)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LOOK_UP_MAX_S = 120


class DigestError(Exception):
    """No client was found, or what it printed is no digest."""


def client_of(words: Sequence[str]) -> list[str]:
    """Return the command that prints the digest of an image.

    Args:
        words: What the user wants; empty: whichever is installed.
    """
    if words:
        return list(words)
    for name, more in CLIENTS.items():
        if program := shutil.which(name):
            return [program, *more]
    raise DigestError(f"no registry client was found: install {', '.join(CLIENTS)}, or name one")


def look_up(client: Sequence[str], image: str) -> str:
    """Return the digest of an image as the registry has it."""
    name = f"docker://{image}" if Path(client[0]).name == "skopeo" else image
    ran = subprocess.run(
        [*client, name], capture_output=True, text=True, timeout=LOOK_UP_MAX_S, check=False
    )
    answer = ran.stdout.strip()
    if ran.returncode or not DIGEST.fullmatch(answer):
        said = answer or ran.stderr.strip() or "nothing"
        raise DigestError(
            f"{client[0]} printed {said!r} for {image}, expected sha256:<64 hex digits>"
        )
    return answer


def with_base(dockerfile: str, digest: str) -> str:
    """Return the Dockerfile with its base image pinned."""
    return BASE_IMAGE.sub(rf"\g<1>\g<2>@{digest}", dockerfile)


def with_store(kustomization: str, name: str, digest: str) -> str:
    """Return the overlay with the store's image pinned."""
    entry = f"  - name: {name}\n    digest: {digest}\n"
    known = re.compile(rf"^  - name: {re.escape(name)}\n    digest: .*\n", re.M)
    if known.search(kustomization):
        return known.sub(entry, kustomization)
    return kustomization.replace("images:\n", f"images:\n{entry}")


def pin(root: Path, client: Sequence[str]) -> None:
    """Look both images up and write their digests."""
    dockerfile, overlay = (root / path for path in (DOCKERFILE, OVERLAY))
    base = BASE_IMAGE.search(dockerfile.read_text("utf-8"))
    store = STORE_IMAGE.search((root / STORE).read_text("utf-8"))
    assert base is not None, dockerfile
    assert store is not None, STORE
    digests = [look_up(client, image) for image in (base[2], store[1])]
    dockerfile.write_text(with_base(dockerfile.read_text("utf-8"), digests[0]), "utf-8")
    overlay.write_text(with_store(overlay.read_text("utf-8"), store[2], digests[1]), "utf-8")
    sys.stdout.write(f"{DOCKERFILE}: {base[2]}@{digests[0]}\n{OVERLAY}: {store[1]} {digests[1]}\n")


def main(words: Sequence[str]) -> int:
    """Do it; return the exit code."""
    try:
        pin(ROOT, client_of(words))
    except DigestError as error:
        sys.stderr.write(f"image_digests: {error}; nothing was written\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
