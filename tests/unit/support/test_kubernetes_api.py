"""The stand-in's API over HTTPS, asked as Ray's client asks."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.certificates import create_certificates
from tests.support.kubernetes.resource_store import PODS, RAY_CLUSTERS, ResourceStore

TOKEN = "a-token"
CLUSTER = "/apis/ray.io/v1/namespaces/lake/rayclusters/neve"
ALL_PODS = "/api/v1/namespaces/lake/pods"
PATCH_TYPE = {"Content-Type": "application/json-patch+json"}
NO_WORKERS = [{"op": "replace", "path": "/spec/replicas", "value": 0}]


@pytest.fixture
def store() -> ResourceStore:
    store = ResourceStore("lake")
    store.create(RAY_CLUSTERS, {"metadata": {"name": "neve"}, "spec": {"replicas": 1}})
    for name in ("neve-head", "other-head"):
        labels = {"ray.io/cluster": name.partition("-")[0]}
        store.create(PODS, {"metadata": {"name": name, "labels": labels}})
    return store


@pytest.fixture
def client(store: ResourceStore, tmp_path: Path) -> Iterator[httpx.Client]:
    certificates = create_certificates(tmp_path, ["127.0.0.1"])
    server = ApiServer(("127.0.0.1", 0), store, TOKEN, certificates.server)
    with (
        server.serving(),
        httpx.Client(
            base_url=f"https://127.0.0.1:{server.server_port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=ssl.create_default_context(cafile=certificates.authority),
        ) as client,
    ):
        yield client


def refusal(response: httpx.Response) -> tuple[int, str]:
    """Return the code and the reason of a `Status`, which must agree with the response."""
    status = response.json()
    assert (status["kind"], status["code"]) == ("Status", response.status_code)
    return response.status_code, status["reason"]


def test_an_object_is_read_and_patched(client: httpx.Client, store: ResourceStore) -> None:
    read = client.get(CLUSTER).json()
    assert read == store.get(RAY_CLUSTERS, "neve")

    patched = client.patch(CLUSTER, json=NO_WORKERS, headers=PATCH_TYPE).json()
    assert patched["spec"] == {"replicas": 0}
    assert patched == store.get(RAY_CLUSTERS, "neve")


def test_a_list_has_a_version_and_obeys_its_selector(
    client: httpx.Client, store: ResourceStore
) -> None:
    # Ray's own query; the versions are older ones, which Kubernetes would serve from its cache.
    query = (
        "labelSelector=ray.io/cluster%3Dneve&resourceVersion=1&resourceVersionMatch=NotOlderThan"
    )
    found = client.get(f"{ALL_PODS}?{query}").json()

    assert found["kind"] == "PodList"
    assert found["metadata"]["resourceVersion"] == store.version
    assert found["items"] == [store.get(PODS, "neve-head")]


@pytest.mark.parametrize("header", ["", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
def test_nobody_gets_in_without_the_token(client: httpx.Client, header: str) -> None:
    response = client.get(CLUSTER, headers={"Authorization": header})

    assert refusal(response) == (401, "Unauthorized")


def test_a_certificate_of_another_authority_is_not_trusted(client: httpx.Client) -> None:
    with (
        httpx.Client(verify=ssl.create_default_context()) as stranger,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.get(client.base_url)
    # The server goes on.
    assert client.get(CLUSTER).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/apis/ray.io/v1/namespaces/lake/rayclusters/other",
        "/api/v1/namespaces/lake/pods/other",
        "/apis/ray.io/v1alpha1/namespaces/lake/rayclusters/neve",
        "/api/v1/namespaces/lake/secrets/token",
        "/",
    ],
)
def test_what_is_not_there_is_not_found(client: httpx.Client, path: str) -> None:
    assert refusal(client.get(path)) == (404, "NotFound")


def test_another_namespace_is_forbidden(client: httpx.Client) -> None:
    assert refusal(client.get("/api/v1/namespaces/kube-system/pods")) == (403, "Forbidden")


def test_bad_patches_change_nothing(client: httpx.Client, store: ResourceStore) -> None:
    before = store.version
    merge = {"Content-Type": "application/merge-patch+json"}
    missing = [{"op": "replace", "path": "/spec/absent", "value": 0}]

    assert refusal(client.patch(CLUSTER, json={}, headers=merge)) == (415, "UnsupportedMediaType")
    assert refusal(client.patch(CLUSTER, json=missing, headers=PATCH_TYPE)) == (422, "Invalid")
    assert refusal(client.patch(CLUSTER, json={}, headers=PATCH_TYPE)) == (400, "BadRequest")
    assert refusal(client.patch(CLUSTER, content="[", headers=PATCH_TYPE)) == (400, "BadRequest")
    assert refusal(client.delete(ALL_PODS)) == (400, "BadRequest")
    assert store.version == before


def test_a_replacement_of_an_old_version_is_a_conflict(client: httpx.Client) -> None:
    read = client.get(CLUSTER).json()
    assert client.put(CLUSTER, json=read).status_code == 200
    assert refusal(client.put(CLUSTER, json=read)) == (409, "Conflict")


def test_a_deleted_pod_is_marked(client: httpx.Client) -> None:
    assert "deletionTimestamp" in client.delete(f"{ALL_PODS}/neve-head").json()["metadata"]
    assert client.get(f"{ALL_PODS}/neve-head").status_code == 200
