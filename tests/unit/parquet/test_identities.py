"""What a location is on this machine: links, mounts and numbers of folders are looked through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.model.location_identity import LocationIdentity
from common.parquet.resolved_location import (
    Mount,
    identities_of,
    read_mounts,
    resolve_location,
)

ROOT = Mount("8:1", "", "")


def identity(path: Path | str, *mounts: Mount) -> LocationIdentity:
    return resolve_location(Path(path).as_uri(), (ROOT, *mounts)).identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "real/t").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    return tmp_path.resolve()


def test_links_lead_to_the_same_location(folder: Path) -> None:
    assert identity(folder / "link/t") == identity(folder / "real/t")
    assert resolve_location((folder / "link/t").as_uri()).uri == (folder / "real/t").as_uri()
    assert identity(folder / "link").overlaps(identity(folder / "real/t"))


def test_the_parent_of_a_link_is_that_of_its_target(folder: Path) -> None:
    (folder / "deep/a/b").mkdir(parents=True)
    (folder / "down").symlink_to("deep/a/b")
    for up in ("down/..", "down/../../a", "down/../x/.."):
        assert resolve_location(f"{folder.as_uri()}/{up}").uri == (folder / "deep/a").as_uri()


def test_a_folder_that_is_not_there_yet_counts_by_the_one_above(folder: Path) -> None:
    assert identity(folder / "link/new/x") == identity(folder / "real/new/x")
    assert identity(folder / "link/new/x").lies_in(identity(folder / "real"))
    assert not identity(folder / "link/new").overlaps(identity(folder / "real/t"))


def test_the_root_of_a_process_is_looked_through(folder: Path) -> None:
    there = f"/proc/self/root{folder}/real/t"
    assert identity(there) == identity(folder / "real/t")
    here = os.open(folder / "real", os.O_RDONLY)
    try:
        assert identity(f"/proc/self/fd/{here}/t") == identity(folder / "real/t")
    finally:
        os.close(here)


def test_links_in_a_ring_are_a_location_of_their_own(folder: Path) -> None:
    (folder / "ring").symlink_to("ring")
    assert not identity(folder / "ring/t").overlaps(identity(folder / "real"))


def test_a_bind_mount_of_a_folder_is_that_folder() -> None:
    over = Mount("8:1", "/srv/lake/t", "/mnt/t")
    assert identity("/mnt/t/x", over).lies_in(identity("/srv/lake", over))
    assert identity("/mnt/t", over).overlaps(identity("/srv/lake/t/x", over))
    assert not identity("/mnt/t2", over).overlaps(identity("/srv/lake/t", over))
    hidden = Mount("8:2", "", "/mnt/t")
    assert not identity("/mnt/t", over, hidden).overlaps(identity("/srv/lake/t", over, hidden))


def test_numbers_of_folders_tell_where_nobody_tells_of_mounts(folder: Path) -> None:
    one, other = (
        resolve_location((folder / name).as_uri(), ()).identity
        for name in ("real", "link/t/not/there")
    )
    assert not any(name.startswith("mount ") for name in (*one.names, *other.names))
    renamed = LocationIdentity(one.names[1:], one.above)
    assert other.lies_in(renamed), "the folder's number is known on the way to it"


def test_mount_points_are_read_from_mountinfo(tmp_path: Path) -> None:
    assert any(mount.point == "" for mount in read_mounts())
    told = tmp_path / "mountinfo"
    told.write_text("36 35 98:0 /a\\040b /mnt\\011c rw shared:1 - ext4 /dev/x rw\nodd\n")
    assert read_mounts(told) == (Mount("98:0", "/a b", "/mnt\tc"),)
    assert read_mounts(tmp_path / "none") == ()


def test_texts_that_are_no_locations_have_an_identity_too() -> None:
    for text in ("file:///a%00b", "http://[", "", "s3://"):
        assert resolve_location(text).identity.names
    assert identities_of({"a": "s3a://x/y", "b": "file:///tmp"})["a"] == (
        resolve_location("s3://x/y").identity
    )
