"""Two locations that share files have identities that overlap, whatever they are called."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.location_identity import (
    LocationIdentity,
    canonical_endpoint,
    identity_of_uri,
    is_system_path,
    overlapping_pair,
)

MINIO = {"s3": "https://MinIO.example:443/"}

SAME = [
    ("file:///data/t", "file:///data//./t/"),
    ("file:///data/t", "file:///data/x/../t"),
    ("file:///data/a%20b", "file:///data/a b"),
    ("s3://lake/t", "s3a://lake/t"),
    ("s3://lake/t", "s3n://lake//t/."),
    ("s3://lake/t", "S3://LAKE/t"),
    ("s3://lake/t", "s3://lake/t?endpoint_override=s3.eu-west-1.amazonaws.com"),
    ("gs://lake/t", "gcs://Lake/t/"),
    ("abfs://box@Account.dfs.core.windows.net/t", "abfss://box@account.dfs.core.windows.net/t"),
    ("abfss://box@account.dfs.core.windows.net/t", "abfss://account.blob.core.windows.net/box/t"),
    ("abfs://account@box/t", "az://box@account.dfs.core.windows.net/t"),
]
APART = [
    ("file:///data/t", "file:///data/t2"),
    ("file:///data/t", "s3://data/t"),
    ("s3://lake/t", "gs://lake/t"),
    ("s3://lake/t", "s3://lake/T"),
    ("s3://lake/t", "s3://lake2/t"),
    ("s3://lake/t", "s3://lake/t?endpoint_override=minio:9000"),
    ("abfs://box@one.dfs.core.windows.net/t", "abfs://box@two.dfs.core.windows.net/t"),
    ("http://[", "file:///x"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_names_of_one_location_have_one_identity(one: str, other: str) -> None:
    assert identity_of_uri(one) == identity_of_uri(other)


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_locations_do_not_overlap(one: str, other: str) -> None:
    assert not identity_of_uri(one).overlaps(identity_of_uri(other))


def test_a_folder_of_a_location_lies_in_it() -> None:
    lake, table = identity_of_uri("s3://lake"), identity_of_uri("s3a://lake/a/t")
    assert table.path_below(lake) == "/a/t"
    assert lake.path_below(table) is None
    assert lake.path_below(lake) == ""
    assert lake.overlaps(table)
    assert table.overlaps(lake)
    assert identity_of_uri("s3://lake/x").lies_in(identity_of_uri("s3://"))
    assert identity_of_uri("file:///x").lies_in(identity_of_uri("file:///"))


def test_an_endpoint_of_the_environment_counts_like_one_that_is_written() -> None:
    known = identity_of_uri("s3://lake/t", MINIO)
    assert known == identity_of_uri("s3://lake/t?endpoint_override=minio.example&scheme=http")
    assert not known.overlaps(identity_of_uri("s3://lake/t"))
    account = {"abfs": "Account"}
    assert identity_of_uri("abfs://box/t", account) == identity_of_uri("abfs://account@box/t")
    own_domain = identity_of_uri("abfs://box@storage.example/t", account)
    assert own_domain == identity_of_uri("abfs://account@box/t")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("https://Minio.example:9000/x", "minio.example:9000"),
        ("http://minio:80", "minio"),
        ("key:secret@minio", "minio"),
        ("s3.dualstack.eu-central-1.amazonaws.com", ""),
        ("notamazonaws.com", "notamazonaws.com"),
        ("", ""),
    ],
)
def test_endpoints_have_one_form(written: str, host: str) -> None:
    assert canonical_endpoint(written) == host


def test_ways_over_other_folders_tell_in_what_a_location_lies() -> None:
    bound = LocationIdentity(("file:/mnt/b", "inode 8:1:7:"), ("inode 8:1:2:/mnt/b",))
    below = LocationIdentity(("file:/data/t/x", "inode 8:1:9:"), ("inode 8:1:7:/x",))
    assert below.lies_in(bound)
    assert not bound.lies_in(below)
    assert bound.overlaps(below)


def test_paths_of_the_system() -> None:
    assert is_system_path("/etc")
    assert is_system_path("/proc/self/root/data")
    assert not is_system_path("/etcetera")


NAMES = st.lists(st.sampled_from("ab"), max_size=4).map(
    lambda parts: "".join(f"/{p}" for p in parts)
)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=2), max_size=6))
def test_the_pair_is_found_that_comparing_all_would_find(paths: list[list[str]]) -> None:
    identities = {
        str(number): LocationIdentity(
            tuple(f"file:{each}" for each in some[:1]), tuple(f"file:{each}" for each in some[1:])
        )
        for number, some in enumerate(paths)
    }
    pairs = {
        pair
        for pair in itertools.permutations(identities, 2)
        if identities[pair[0]].overlaps(identities[pair[1]])
    }
    found = overlapping_pair(identities)
    assert (found in pairs) if pairs else found is None
