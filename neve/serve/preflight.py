"""Checks before a service starts on a cluster; each problem is one sentence."""

import asyncio
import os
import re
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from common.compactor_needs import NodeNeed, Offers, group_needs
from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.redis import connect
from common.settings import Settings, StoreSettings


class SilentStoreError(ConfigError, UnavailableError):
    """The Redis of setting `store.url` does not answer: it is down, or the setting is wrong."""


class NotYetError(ConfigError, UnavailableError):
    """A cluster cannot be joined now; a retry may succeed, because its head may be starting."""


CONNECT_WAIT_S = 10.0
"""Longest wait for a TCP connection to Ray. Ray itself would retry for minutes."""
ADDRESS_VARIABLE = "RAY_ADDRESS"
CLIENT_SCHEME = "ray"
LOCAL_NAMES = frozenset({"auto", "local"})


# ---------------------------------------------------------------------------------------------- Ray


def checked_address(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the address of the configured Ray cluster; require that a server listens there.

    Args:
        given: The operator's address; None: use `RAY_ADDRESS`.
        environ: Environment with `RAY_ADDRESS`.

    Raises:
        ConfigError: No address is given, or the address is invalid.
        NotYetError: No server listens at the address.
    """
    address = given or environ.get(ADDRESS_VARIABLE, "")
    if not address or address in LOCAL_NAMES:
        raise ConfigError(
            "no Ray cluster is configured: set RAY_ADDRESS or --address, such as"
            " ray://neve-head-svc:10001; `neve up` starts its own cluster"
        )
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=CONNECT_WAIT_S).close()
    except OSError as error:
        why = "it did not answer in time" if isinstance(error, TimeoutError) else error.strerror
        raise NotYetError(
            f"no Ray answers at {address}: {why or error}; check that the head is running and"
            " that the address is right"
        ) from error
    return address


def _host_and_port(address: str) -> tuple[str, int]:
    wrong = ConfigError(
        f"Ray address {address!r} cannot be read, expected ray://host:10001 (Ray Client) or"
        " host:6379 (from a machine of the cluster)"
    )
    scheme, separator, rest = address.partition("://")
    if separator and scheme != CLIENT_SCHEME:
        raise wrong
    parts = urlsplit(f"//{rest if separator else address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or not port:
        raise wrong
    return host, port


def joining_problem(address: str, error: BaseException) -> ConfigError:
    """Return why a cluster cannot be joined, with advice for the operator.

    Args:
        address: Address of the cluster.
        error: The error that Ray raised.

    Returns:
        A `NotYetError` if a retry may help.
    """
    text = str(error).strip()
    if type(error).__name__ == "AuthenticationError" or re.search(r"(?i)authenticat|token", text):
        given = _shown_token(os.environ)
        return ConfigError(
            f"the Ray cluster at {address} requires a token, and got {given}: set"
            " RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of"
            " the cluster"
        )
    if re.search(r"[Vv]ersions? (mismatch|differ|do)|differs? from", text) or "mismatch" in text:
        sentence = " ".join(text.split())[:300]
        return ConfigError(
            f"the Ray cluster at {address} runs another version: {sentence}; use the image or the"
            " pinned requirements of this release on every node"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    cause = lines[0]
    if cause.endswith(":") and len(lines) > 1:  # A headline: the last line holds the reason.
        cause = f"{cause} {lines[-1]}"
    return NotYetError(
        f"the Ray cluster at {address} cannot be joined: {type(error).__name__}: {cause[:300]}"
    )


def _shown_token(environ: Mapping[str, str]) -> str:
    """Return a phrase for the token that Ray finds in an environment."""
    if environ.get("RAY_AUTH_MODE") != "token":
        return "no token, because RAY_AUTH_MODE is not `token`"
    path = environ.get("RAY_AUTH_TOKEN_PATH", "")
    if environ.get("RAY_AUTH_TOKEN") or (path and Path(path).is_file()):
        return "a token that it refuses"
    return "no token"


def missing_resources(settings: Settings, nodes: Offers) -> Iterator[str]:
    """Yield a sentence for each required resource that no node of the cluster offers.

    Args:
        settings: Settings of the service.
        nodes: Ray resources of each node.
    """
    service = settings.cluster.service_resource
    if service and NodeNeed(resource=service).lack(nodes):
        yield (
            f"no node has the Ray resource {service!r} of setting cluster.service_resource: "
            "coordinator and gateway need one; start a node with it, such as the worker group "
            "`service` in k8s/"
        )
    for group, own in settings.groups.items():
        needs = group_needs(settings, group) if own.compactors.max else iter(())
        if lack := next(filter(None, (need.lack(nodes) for need in needs)), ""):
            yield (
                f"group {group}: {lack}; its compactors wait for such a node: start one,"
                " unless Ray's autoscaler adds it"
            )


# -------------------------------------------------------------------------------------------- Redis


def require_store(store: StoreSettings) -> tuple[str, ...]:
    """Require a usable Redis with a store; return its warnings.

    Raises:
        ConfigError: Names the setting and the problem.
        SilentStoreError: Redis does not answer.
    """

    async def ask() -> tuple[str, ...]:
        link = connect(store)
        try:
            health = await link.health()
            health.check()
            await link.names()
            return health.warnings
        finally:
            await link.close()

    try:
        # In a thread, because the caller may already run an event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, ask()).result()
    except UnavailableError as error:
        raise SilentStoreError(f"setting store.url: {error}") from error
    except MetadataError as error:
        raise ConfigError(f"setting store.url: {error}") from error


# ------------------------------------------------------------------------------------------ Secrets


def secret_remarks(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each secret that Ray's head would store.

    Args:
        settings: Settings of the service, which are passed to actors on other nodes.
    """
    secrets = {
        "store.url": "@" in settings.store.url and not settings.store.url_file,
        "gateway.token": settings.gateway.token and not settings.gateway.token_file,
        "notify.webhook_url": settings.notify.webhook_url,
    }
    for name in [name for name, is_held in secrets.items() if is_held]:
        yield (
            f"setting {name} holds a secret, which Ray's head stores and every driver of the"
            f" cluster can read: put it into a file on every node and set {name}_file"
        )
