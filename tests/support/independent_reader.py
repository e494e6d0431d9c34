"""A reader of lake tables that shares no code with the product: DuckDB, in a process of its own.

It writes tables of a REST catalog, too: `DuckWriter` deletes rows by position.

DuckDB reads Delta logs and Iceberg metadata by extensions, which come as wheels for one version
only. So this version has a folder of its own (`make install` fills it), and the process sees the
standard library and this folder, nothing else. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix, "reader")
EXTENSIONS = ("avro", "delta", "httpfs", "iceberg")
MEMORY = "1GB"
TRIES_MAX = 100


class QueryError(AssertionError):
    """DuckDB refuses a query."""


class IndependentReader:
    """A process that reads tables. It ends with the process that started it."""

    def __init__(self) -> None:
        assert FOLDER.is_dir(), f"{FOLDER} is missing: run `make install`"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(FOLDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        setup: Sequence[str] = (),
    ) -> Any:
        """Return the rows of a query, values as in JSON; other values are texts.

        Args:
            query: SQL of DuckDB.
            parameters: Values of its question marks, or of its `$names`.
            setup: Statements to be executed before it.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = {"query": query, "parameters": _plain(parameters), "setup": list(setup)}
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline() or '{"error": "the reader has ended"}')
        if "error" in answer:
            message = f"{query}: {answer['error']}"
            raise QueryError(message)
        return answer["rows"]

    def end(self) -> None:
        """End the process."""
        with self._process:  # closes both pipes, and waits
            pass

    def delta_rows(
        self, uri: str, *columns: str, options: Mapping[str, str] | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Return the rows of a Delta table at its head, with their counts."""
        setup = [_secret(uri, options)] if options else []
        return self._rows("delta_scan", uri, columns, setup)

    def iceberg_rows(
        self, metadata: str, *columns: str, options: Mapping[str, str] | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Return the rows of an Iceberg table as a metadata file has it, with their counts."""
        setup = [_secret(metadata, options)] if options else []
        return self._rows("iceberg_scan", metadata, columns, setup)

    def _rows(
        self, function: str, uri: str, columns: Sequence[str], setup: Sequence[str]
    ) -> Counter[tuple[Any, ...]]:
        names = ", ".join(f'"{name}"' for name in columns)
        rows = self.ask(f"select {names} from {function}(?)", [uri], setup)
        return Counter(tuple(row) for row in rows)


class DuckWriter:
    """A process of DuckDB that changes a table of a REST catalog. A statement is a transaction."""

    def __init__(self, uri: str, name: str) -> None:
        """Connect to the catalog at a URI; `name` is that of a table, with its namespace."""
        self.process = IndependentReader()
        self.table = f"lake.{name}"
        options = f"type iceberg, endpoint '{uri}', authorization_type 'none'"
        self._attach = f"attach 'warehouse' as lake ({options})"
        self.process.ask(self._attach)

    def refresh(self) -> None:
        """Forget the version that DuckDB has seen last: it keeps it for later statements."""
        self.process.ask("detach lake")
        self.process.ask(self._attach)

    def delete(self, ids: Iterable[int]) -> int:
        """Delete rows by their `id`, by position; return their number."""
        chosen = ", ".join(map(str, ids))
        return self.run(f"delete from {self.table} where id in ({chosen})")

    def run(self, statement: str) -> int:
        """Execute a statement, and return how many rows it has changed.

        It is repeated if another writer was faster.
        """
        for _ in range(TRIES_MAX):
            try:
                ((changed,),) = self.process.ask(statement)
            except QueryError as error:
                if "Conflict_409" not in str(error):
                    raise
                self.refresh()
            else:
                assert isinstance(changed, int), changed
                return changed
        message = f"another writer was always faster: {statement}"
        raise AssertionError(message)

    def rows(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows at the head, with their counts."""
        return Counter(
            map(tuple, self.process.ask(f"select {', '.join(columns)} from {self.table}"))
        )


@functools.cache
def independent_reader() -> IndependentReader:
    """Return the reader of this process."""
    return IndependentReader()


def _plain(parameters: Sequence[Any] | Mapping[str, Any]) -> object:
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def _secret(uri: str, options: Mapping[str, str]) -> str:
    """Return the statement that lets DuckDB read a bucket."""
    own = {name.lower(): value for name, value in options.items()}
    endpoint = own.get("aws_endpoint") or own["aws_endpoint_url"]
    values = {
        "key_id": own["aws_access_key_id"],
        "secret": own["aws_secret_access_key"],
        "region": own["aws_region"],
        "endpoint": endpoint.partition("://")[2],
        "url_style": "path",
        "scope": "/".join(uri.split("/")[:3]),
    }
    pairs = [f"{name} '{value}'" for name, value in values.items()]
    pairs.append(f"use_ssl {str(endpoint.startswith('https')).lower()}")
    return f"create or replace secret bucket (type s3, {', '.join(pairs)})"


# ------------------------------------------------------------------------------ In its own process


def _serve(folder: str) -> None:
    """Answer requests until there are no more."""
    sys.path.insert(0, folder)
    import duckdb

    settings = {"allow_unsigned_extensions": "true", "memory_limit": MEMORY, "threads": "1"}
    link = duckdb.connect(config=settings)
    link.execute("set autoinstall_known_extensions=false; set autoload_known_extensions=false")
    for name in EXTENSIONS:
        (path,) = Path(folder, f"duckdb_extension_{name}").rglob(f"{name}.duckdb_extension")
        link.execute(f"load '{path}'")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            for statement in request["setup"]:
                link.execute(statement)
            answer = {"rows": link.execute(request["query"], request["parameters"]).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
