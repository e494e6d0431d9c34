"""No path leads out of the table's folder."""

from pathlib import Path

import pytest

from common.errors import RequestError
from common.parquet.location import open_location, resolve, size_of


def test_paths_below_the_location_in_every_form(tmp_path: Path) -> None:
    location = open_location(f"file://{tmp_path}/a b/t/".replace(" ", "%20"))
    assert location.root == f"{tmp_path}/a b/t"
    assert location.is_local
    for path in (
        "x/y.parquet",
        f"{tmp_path}/a b/t/x/y.parquet",
        f"file://{tmp_path}/a%20b/t/x/y.parquet",
    ):
        assert location.relative(path) == "x/y.parquet"
        assert location.full(path) == f"{tmp_path}/a b/t/x/y.parquet"


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "../t/x",
        "x/../../y",
        "x/./y",
        "x//y",
        "x/",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://bucket/t/x",
        "file://host{root}/x",
        "file://{root}/../x",
        "file://{root}/%2e%2e/x",
        "file://{root}2/x",
        "{root}",
        "{root}/",
        "x\\y",
        "x\0",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    with pytest.raises(RequestError, match="path"):
        resolve(f"file://{root}", path.replace("{root}", str(root)))


def test_links_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    (root / "inside").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (root / "out").symlink_to(tmp_path / "other")
    (root / "in").symlink_to(root / "inside")
    assert resolve(f"file://{root}", "in/x") == f"{root}/in/x"
    with pytest.raises(RequestError, match="through a link"):
        resolve(f"file://{root}", "out/x")


def test_a_location_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "real")
    assert resolve(f"file://{tmp_path}/t", "x") == f"{tmp_path}/t/x"


def test_buckets_are_kept_apart() -> None:
    location = open_location("s3://bucket/tables/t?region=eu-west-1")
    assert location.root == "bucket/tables/t"
    assert location.full("s3://bucket/tables/t/x") == "bucket/tables/t/x"
    for path in ("s3://other/tables/t/x", "s3://bucket/tables/t2/x", "/bucket/tables/t/x"):
        with pytest.raises(RequestError, match="location"):
            location.relative(path)


@pytest.mark.parametrize(
    "uri", ["", "/data/t", "ftp://host/t", "file:///", "t", "http://[", "s3://"]
)
def test_other_locations_are_refused(uri: str) -> None:
    with pytest.raises(RequestError):
        open_location(uri)


def test_size_of_gives_bytes_and_refuses_folders(tmp_path: Path) -> None:
    location = open_location(f"file://{tmp_path}")
    (tmp_path / "x").write_bytes(b"123")
    (tmp_path / "d").mkdir()
    assert size_of(location, "x") == 3
    with pytest.raises(RequestError, match="is a folder"):
        size_of(location, "d")
    with pytest.raises(RequestError, match="does not exist"):
        size_of(location, "y")
