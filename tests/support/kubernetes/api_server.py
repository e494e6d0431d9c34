"""A resource store over HTTPS, for holders of a token.

It serves the paths that KubeRay's autoscaler asks for, in one namespace:

    GET, PATCH, PUT, DELETE  /apis/ray.io/v1/namespaces/{namespace}/rayclusters/{name}
    GET, PATCH, PUT, DELETE  /api/v1/namespaces/{namespace}/pods/{name}
    GET                      the same without a name: a list, with `labelSelector`

Every refusal is a Kubernetes `Status`. Lists ignore `resourceVersion`: they are always new.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes import json_patch
from tests.support.kubernetes.resource_store import (
    PODS,
    RAY_CLUSTERS,
    ApiError,
    ForbiddenError,
    NotFoundError,
    ResourceStore,
    UnauthorizedError,
    UnsupportedMediaTypeError,
)

PATHS = {
    PODS: re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+))?"),
    RAY_CLUSTERS: re.compile(r"/apis/ray\.io/v1/namespaces/([^/]+)/rayclusters(?:/([^/]+))?"),
}
LIST_KINDS = {PODS: ("v1", "PodList"), RAY_CLUSTERS: ("ray.io/v1", "RayClusterList")}
BODY_BYTES_MAX = 4 * 1024**2
SILENCE_MAX_S = 60.0
"""How long a connection may say nothing."""


class ApiServer(ThreadingHTTPServer):
    """Listens on `address` with TLS; each connection has a thread of its own."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], store: ResourceStore, token: str, certificate: Path
    ) -> None:
        self.store = store
        self.token = token
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, peer = super().get_request()
        accepted.settimeout(SILENCE_MAX_S)
        # The handshake waits for the client, so it belongs into the connection's thread.
        wrapped = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        return wrapped, peer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away or did not trust the certificate."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in a thread for the length of a block."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Keep the output for what the machine says."""

    def _answer(self) -> None:
        try:
            # Read first: an unread body would be taken for the next request.
            body = self._body()
            code, answer = 200, self._dispatch(body)
        except ApiError as error:
            code, answer = error.code, _status(error)
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            raise ApiError(f"a body of {length} bytes is more than {BODY_BYTES_MAX}")
        return self.rfile.read(length)

    def _dispatch(self, body: bytes) -> Mapping[str, Any]:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            raise UnauthorizedError("Unauthorized")
        url = urlsplit(self.path)
        kind, namespace, name = _route(url.path)
        if namespace != self.server.store.namespace:
            raise ForbiddenError(f"the service account may not use namespace {namespace}")
        if name is not None:
            return self._one(kind, name, body)
        if self.command != "GET":
            raise ApiError(f"{self.command} needs the name of an object")
        return self._list(kind, parse_qs(url.query).get("labelSelector", [""])[0])

    def _list(self, kind: str, selector: str) -> Mapping[str, Any]:
        store = self.server.store
        version, kind_name = LIST_KINDS[kind]
        # The version is read first: the list is at least as new.
        metadata = {"resourceVersion": store.version}
        items = store.list(kind, selector)
        return {"apiVersion": version, "kind": kind_name, "metadata": metadata, "items": items}

    def _one(self, kind: str, name: str, body: bytes) -> Mapping[str, Any]:
        store = self.server.store
        match self.command:
            case "GET":
                return store.get(kind, name)
            case "DELETE":
                return store.delete(kind, name)
            case "PUT":
                return store.replace(kind, name, _parsed(body, dict))
            case _:
                if self.headers.get("Content-Type") != json_patch.CONTENT_TYPE:
                    raise UnsupportedMediaTypeError(f"a patch must be {json_patch.CONTENT_TYPE}")
                return store.patch(kind, name, _parsed(body, list))


def _route(path: str) -> tuple[str, str, str | None]:
    for kind, pattern in PATHS.items():
        if found := pattern.fullmatch(path):
            return kind, found[1], found[2]
    raise NotFoundError("the server could not find the requested resource")


def _parsed(body: bytes, expected: type) -> Any:
    try:
        parsed = json.loads(body)
    except ValueError:
        raise ApiError("the body is not JSON") from None
    if not isinstance(parsed, expected):
        raise ApiError(f"the body is not a JSON {expected.__name__}")
    return parsed


def _status(error: ApiError) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": str(error),
        "reason": error.reason,
        "code": error.code,
    }
