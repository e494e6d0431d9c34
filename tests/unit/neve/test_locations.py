"""Where tables may be: what is named, nothing of the system, nothing of the service."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import ConfigError, RefusedError, RequestError
from common.runtime import SystemClock
from neve.client.errors import NeveError
from neve.gateway.table_locations import Locations, normal_location
from tests.support.gateway import serving
from tests.support.memory_store import MemoryStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/t", "service/redis", "service/tables", "other"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path.resolve()


@pytest.fixture
def locations(folder: Path) -> Locations:
    allowed = (str(folder / "data"), str(folder / "service/tables"), "s3://lake/tables")
    return Locations(allowed, (str(folder / "service"),))


def test_locations_below_a_named_place_are_admitted(locations: Locations, folder: Path) -> None:
    for path in ("data", "data/t", "data/new/x", "service/tables/t"):
        assert locations.admitted(str(folder / path)).uri == (folder / path).as_uri()
    assert locations.admitted("s3a://lake/tables/x/").uri == "s3://lake/tables/x"


@pytest.mark.parametrize("path", ["other", "data2", "service", "service/redis", "service/x", ""])
def test_locations_outside_of_named_places_are_refused(
    locations: Locations, folder: Path, path: str
) -> None:
    with pytest.raises(RefusedError, match=r"neve up --allow|keeps its own files"):
        locations.admitted(str(folder / path))
    with pytest.raises(RefusedError, match=r"is not where tables are allowed .*s3://lake/tables"):
        locations.admitted("s3://lake/table")


def test_links_do_not_lead_out(locations: Locations, folder: Path) -> None:
    (folder / "data/out").symlink_to(folder / "other")
    (folder / "data/own").symlink_to(folder / "service/redis")
    (folder / "into").symlink_to(folder / "data/t")
    with pytest.raises(RefusedError, match=f"which is file://{folder}/other/x, is not where"):
        locations.admitted(str(folder / "data/out/x"))
    with pytest.raises(RefusedError, match="keeps its own files"):
        locations.admitted(str(folder / "data/own"))
    assert locations.admitted(str(folder / "into")).uri == (folder / "data/t").as_uri()


def test_hidden_folders_have_to_be_named(folder: Path) -> None:
    for path in (folder / ".ssh", folder / "a/.b/c"):
        with pytest.raises(RefusedError, match="is not where tables are allowed"):
            Locations((str(folder),)).admitted(str(path))
        assert Locations((str(path),)).admitted(str(path / "t"))


def test_a_folder_that_holds_other_things_is_no_table(folder: Path) -> None:
    home = folder / "home"
    locations = Locations((str(folder), "/"), shared=(str(home),))
    (folder / "way").symlink_to(home)
    for path in (home, folder, folder / "way", f"{home}/", f"{home}/."):
        with pytest.raises(RefusedError, match="a folder of its own below it"):
            locations.admitted(str(path))
    assert locations.admitted(str(home / "t")).uri == (home / "t").as_uri()
    assert locations.admitted(str(folder / "other"))


@pytest.mark.parametrize("path", ["/etc/x", "/proc/1/root/x", "/sys", "/dev/shm/t", "/boot", "/"])
def test_folders_of_the_system_never_are(path: str) -> None:
    with pytest.raises((RefusedError, RequestError)):
        Locations(("/",)).admitted(path)


def test_a_link_into_the_system_is_no_way_there(folder: Path) -> None:
    (folder / "link").symlink_to("/etc")
    with pytest.raises(RefusedError, match="is in or around /etc"):
        Locations(("/",)).admitted(str(folder / "link/t"))
    with pytest.raises(ConfigError, match=r"gateway.locations: .* is in or around /etc"):
        Locations((str(folder / "link"),))


@pytest.mark.parametrize("written", ["relative/x", "ftp://x/y", "file:///../x", "s3://k:s@b/t"])
def test_a_setting_that_is_no_location_ends_the_start(written: str) -> None:
    with pytest.raises(ConfigError, match=r"setting gateway\.locations"):
        Locations((written,))


def test_without_named_places_no_location_is_admitted(folder: Path) -> None:
    with pytest.raises(RefusedError, match=r"nowhere: no place is named.*gateway\.locations"):
        Locations(()).admitted(str(folder))


def test_a_root_place_admits_every_location_of_its_scheme(folder: Path) -> None:
    everywhere = Locations(("/", "s3://"))
    assert everywhere.admitted(str(folder))
    assert everywhere.admitted("s3n://any/where").uri == "s3://any/where"
    with pytest.raises(RefusedError):
        everywhere.admitted("gs://any/where")


OPTIONS = "endpoint_override=minio:9000&scheme=http"


def test_options_of_a_storage_are_taken_if_the_operator_wrote_the_same() -> None:
    uri = f"s3://lake/a/t?{OPTIONS}"
    for allowed in ((), ("s3://",), ("s3://lake/a",), (f"s3://lake/b?{OPTIONS}",)):
        with pytest.raises(RefusedError, match=r"how its storage is reached \(endpoint_override, "):
            Locations(allowed).admitted(uri)
    named = Locations((f"s3://lake/a?{OPTIONS}",))
    assert named.admitted(uri).uri == "s3://lake/a/t?endpoint_override=minio%3A9000&scheme=http"
    for other in ("s3://lake/a/t", uri.replace("http", "https"), uri.replace("9000", "9001")):
        with pytest.raises(RefusedError):
            named.admitted(other)


@pytest.mark.parametrize(
    "query", ["access_key=a&secret_key=b", "endpoint_override=x&session_token=y", "zz9", "="]
)
def test_keys_in_a_location_are_refused_and_not_shown(query: str) -> None:
    with pytest.raises(RequestError, match="no credentials") as caught:
        Locations(("s3://", f"s3://lake?{OPTIONS}")).admitted(f"s3://lake/t?{query}")
    assert query not in str(caught.value)


def test_a_location_has_one_form() -> None:
    assert normal_location(" /data//a b/./t/ ") == "file:///data/a%20b/t"
    assert normal_location("gcs://Bucket//x") == "gs://Bucket/x"
    assert normal_location("abfss://box/t") == "abfss://box/t"
    for wrong in (
        "x" * 5000,
        "s3://[",
        "file://host/x",
        "s3:///x",
        "/a/../b",
        "file:///a%00",
        "s3://b#x",
    ):
        with pytest.raises(RequestError):
            normal_location(wrong)


def test_a_table_that_is_not_where_tables_may_be_is_only_read(tmp_path: Path) -> None:
    """An operator has named other places since it was made."""
    schema = pa.schema([("id", pa.int64())])
    store = MemoryStore(SystemClock())
    with serving(store) as before, before.client() as client:
        client.create_table("t", str(tmp_path / "t"), schema=schema)
        client.append("t", pa.table({"id": [1]}))
    with serving(store, locations=(str(tmp_path / "elsewhere"),)) as now, now.client() as client:
        for change in (
            lambda: client.append("t", pa.table({"id": [2]})),
            lambda: client.add_files("t", ["x.parquet"]),
            lambda: client.compact("t"),
            lambda: client.manifest("t"),
            lambda: client.import_table(str(tmp_path / "t"), "u"),
            lambda: client.rebuild(str(tmp_path / "t"), "u"),
            lambda: client.create_table("u", str(tmp_path / "u"), schema=schema),
        ):
            with pytest.raises(
                NeveError, match=r"is not where tables are allowed .*neve up --allow"
            ):
                change()
        assert client.count("t") == 1
        assert client.fsck("t").sound
        client.drop("t")
