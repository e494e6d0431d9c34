"""The store behind the stand-in's API: versions, conflicts, selectors, deletion."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.kubernetes.label_selector import SelectorError, matches
from tests.support.kubernetes.resource_store import (
    PODS,
    RAY_CLUSTERS,
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    ResourceStore,
)


@pytest.fixture
def store() -> ResourceStore:
    store = ResourceStore("lake")
    store.create(RAY_CLUSTERS, {"metadata": {"name": "neve"}, "spec": {"replicas": 1}})
    for name, group in (("one", "small"), ("two", "large"), ("three", "small")):
        labels = {"ray.io/cluster": "neve", "ray.io/group": group}
        store.create(PODS, {"metadata": {"name": name, "labels": labels}})
    return store


def set_replicas(value: int) -> list[dict[str, Any]]:
    return [{"op": "replace", "path": "/spec/replicas", "value": value}]


def test_every_write_gets_a_newer_version(store: ResourceStore) -> None:
    seen = [int(store.get(RAY_CLUSTERS, "neve")["metadata"]["resourceVersion"])]
    seen += [
        int(store.patch(RAY_CLUSTERS, "neve", set_replicas(number))["metadata"]["resourceVersion"])
        for number in (2, 3)
    ]

    assert seen == sorted(set(seen))
    assert store.version == str(seen[-1])


def test_a_replacement_of_an_old_version_is_a_conflict(store: ResourceStore) -> None:
    read = store.get(RAY_CLUSTERS, "neve")
    store.patch(RAY_CLUSTERS, "neve", set_replicas(2))

    read["spec"]["replicas"] = 5
    with pytest.raises(ConflictError, match="version"):
        store.replace(RAY_CLUSTERS, "neve", read)
    assert store.get(RAY_CLUSTERS, "neve")["spec"] == {"replicas": 2}

    read["metadata"] = store.get(RAY_CLUSTERS, "neve")["metadata"]
    assert store.replace(RAY_CLUSTERS, "neve", read)["spec"] == {"replicas": 5}


def test_a_patch_may_test_the_version_and_may_not_set_it(store: ResourceStore) -> None:
    version = store.get(RAY_CLUSTERS, "neve")["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    store.patch(RAY_CLUSTERS, "neve", [test, *set_replicas(2)])

    with pytest.raises(InvalidError, match="test failed"):
        store.patch(RAY_CLUSTERS, "neve", [test, *set_replicas(3)])
    with pytest.raises(ConflictError):
        store.patch(RAY_CLUSTERS, "neve", [{**test, "op": "replace"}, *set_replicas(3)])
    assert store.get(RAY_CLUSTERS, "neve")["spec"] == {"replicas": 2}


def test_a_deleted_pod_stays_until_it_is_removed(store: ResourceStore) -> None:
    first = store.delete(PODS, "one")["metadata"]
    assert "deletionTimestamp" in first
    # A second deletion changes nothing.
    assert store.delete(PODS, "one")["metadata"] == first

    store.remove(PODS, "one")
    with pytest.raises(NotFoundError):
        store.get(PODS, "one")
    with pytest.raises(NotFoundError):
        store.delete(PODS, "one")


def test_what_is_read_is_a_copy(store: ResourceStore) -> None:
    store.get(PODS, "one")["metadata"]["labels"].clear()
    store.list(PODS)[0]["metadata"].clear()

    assert store.get(PODS, "one")["metadata"]["labels"]["ray.io/group"] == "small"


def test_a_change_that_changes_nothing_is_no_write(store: ResourceStore) -> None:
    before = store.version
    store.update(PODS, "one", lambda pod: None)
    assert store.version == before

    store.update(PODS, "one", lambda pod: pod.update(status={"phase": "Running"}))
    assert store.version != before


def test_a_name_is_taken_once(store: ResourceStore) -> None:
    with pytest.raises(ConflictError, match="exists"):
        store.create(PODS, {"metadata": {"name": "one"}})


def test_writers_at_the_same_time_lose_no_write(store: ResourceStore) -> None:
    def count() -> None:
        for _ in range(100):
            store.update(RAY_CLUSTERS, "neve", add_one)

    def add_one(cluster: dict[str, Any]) -> None:
        cluster["spec"]["replicas"] += 1

    writers = [threading.Thread(target=count) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert store.get(RAY_CLUSTERS, "neve")["spec"]["replicas"] == 401


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["one", "three", "two"]),
        ("ray.io/cluster=neve", ["one", "three", "two"]),
        ("ray.io/group==small", ["one", "three"]),
        ("ray.io/cluster=neve,ray.io/group!=small", ["two"]),
        ("ray.io/group in (large, medium)", ["two"]),
        ("ray.io/group notin (large,small)", []),
        ("!ray.io/node-type, ray.io/group", ["one", "three", "two"]),
        ("ray.io/node-type", []),
        ("ray.io/node-type!=head", ["one", "three", "two"]),
    ],
)
def test_selectors(store: ResourceStore, selector: str, names: list[str]) -> None:
    assert [pod["metadata"]["name"] for pod in store.list(PODS, selector)] == names


@pytest.mark.parametrize("selector", ["a=b=c", "a in b", ",", "a=b,", "a in (b", "=b"])
def test_a_selector_that_cannot_be_read_is_refused(store: ResourceStore, selector: str) -> None:
    with pytest.raises(SelectorError):
        matches(selector, {})
    with pytest.raises(ApiError, match="requirement"):
        store.list(PODS, selector)
