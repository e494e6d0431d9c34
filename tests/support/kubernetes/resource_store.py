"""The objects of one namespace, each with a resource version.

Every write gives its object a new version out of one counter, so versions order all writes.
Callers get copies: no change reaches the store but through a method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes.json_patch import PatchError, apply
from tests.support.kubernetes.label_selector import SelectorError, matches

Resource = dict[str, Any]
PODS = "pods"
RAY_CLUSTERS = "rayclusters"


class ApiError(Exception):
    """What the API server refuses, with an HTTP status and Kubernetes' word for the reason."""

    code = 400
    reason = "BadRequest"


class UnauthorizedError(ApiError):
    """The token is missing or wrong."""

    code, reason = 401, "Unauthorized"


class ForbiddenError(ApiError):
    """The service account has no right there."""

    code, reason = 403, "Forbidden"


class NotFoundError(ApiError):
    """No such object or path."""

    code, reason = 404, "NotFound"


class ConflictError(ApiError):
    """The object has changed since the caller read it."""

    code, reason = 409, "Conflict"


class UnsupportedMediaTypeError(ApiError):
    """The server reads no such patch."""

    code, reason = 415, "UnsupportedMediaType"


class InvalidError(ApiError):
    """The patch does not apply."""

    code, reason = 422, "Invalid"


class ResourceStore:
    """Pods and RayClusters by name; safe to use from several threads."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._objects: dict[str, dict[str, Resource]] = {PODS: {}, RAY_CLUSTERS: {}}
        self._version = 0
        self._changed = threading.Condition(threading.RLock())

    @property
    def version(self) -> str:
        """The version of the newest write."""
        with self._changed:
            return str(self._version)

    def wait_for_change(self, since: str, timeout_s: float) -> None:
        """Return when something was written after version `since`, or after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: str(self._version) != since, timeout_s)

    def get(self, kind: str, name: str) -> Resource:
        with self._changed:
            return deepcopy(self._existing(kind, name))

    def list(self, kind: str, selector: str = "") -> list[Resource]:
        """Return the objects whose labels match, by name."""
        try:
            with self._changed:
                return [
                    deepcopy(found)
                    for _, found in sorted(self._objects[kind].items())
                    if matches(selector, found["metadata"].get("labels", {}))
                ]
        except SelectorError as error:
            raise ApiError(str(error)) from None

    def create(self, kind: str, new: Mapping[str, Any]) -> Resource:
        with self._changed:
            name = new["metadata"]["name"]
            if name in self._objects[kind]:
                raise ConflictError(f"{kind} {name} exists already")
            created = deepcopy(dict(new))
            created["metadata"] |= {
                "namespace": self.namespace,
                "uid": f"00000000-0000-0000-0000-{self._version:012d}",
                "creationTimestamp": timestamp(),
            }
            return self._write(kind, created)

    def replace(self, kind: str, name: str, new: Mapping[str, Any]) -> Resource:
        """Replace an object by a changed copy of the version that it still has.

        Raises:
            ConflictError: `new` carries another version than the stored object.
        """
        with self._changed:
            stored = self._existing(kind, name)["metadata"]["resourceVersion"]
            carried = new["metadata"].get("resourceVersion")
            # Kubernetes takes an update without a version as one that overwrites.
            if carried not in (None, stored):
                raise ConflictError(f"{kind} {name} has version {stored}, not {carried}")
            return self._write(kind, deepcopy(dict(new)))

    def patch(self, kind: str, name: str, operations: Sequence[Mapping[str, Any]]) -> Resource:
        """Apply a JSON patch.

        Raises:
            InvalidError: An operation does not apply.
            ConflictError: The patch sets another version than the stored object has.
        """
        with self._changed:
            try:
                patched = apply(self._existing(kind, name), operations)
            except PatchError as error:
                raise InvalidError(f"{kind} {name}: {error}") from None
            return self.replace(kind, name, patched)

    def update(self, kind: str, name: str, change: Callable[[Resource], None]) -> Resource:
        """Change an object in place, for operator and kubelet; no write if nothing changes."""
        with self._changed:
            changed = self.get(kind, name)
            change(changed)
            if changed == self._existing(kind, name):
                return changed
            return self._write(kind, changed)

    def delete(self, kind: str, name: str) -> Resource:
        """Ask for the end of an object: a pod stays, marked, until its kubelet removes it."""
        if kind == PODS:
            return self.update(kind, name, _mark_deleted)
        return self.remove(kind, name)

    def remove(self, kind: str, name: str) -> Resource:
        with self._changed:
            self._existing(kind, name)
            removed = self._objects[kind].pop(name)
            self._advance()
            return removed

    def _existing(self, kind: str, name: str) -> Resource:
        if name not in self._objects[kind]:
            raise NotFoundError(f'{kind} "{name}" not found')
        return self._objects[kind][name]

    def _write(self, kind: str, written: Resource) -> Resource:
        self._advance()
        written["metadata"]["resourceVersion"] = str(self._version)
        self._objects[kind][written["metadata"]["name"]] = written
        return deepcopy(written)

    def _advance(self) -> None:
        self._version += 1
        self._changed.notify_all()


def timestamp() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _mark_deleted(pod: Resource) -> None:
    pod["metadata"].setdefault("deletionTimestamp", timestamp())
