"""The reference pages of the doors, written from the code: `cli.md` and `http.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from common.model.outcome import RefusalCode
from neve.cli.app import EPILOG, build
from neve.cli.session import REMOTE
from neve.gateway.access.callers import INCLUDED, Role
from neve.gateway.access.route_rights import OPEN, DeclaredRoute, RouteRight, declared_routes
from neve.gateway.app import SLICES, ServiceRoutes
from neve.gateway.problems import STATUS

OPENAPI = "GET /openapi.json"
ROUTES: dict[str, DeclaredRoute] = {
    declared.name: declared
    for kind in (ServiceRoutes, *SLICES)
    for _, declared in declared_routes(kind)
}
ROUTE_RIGHTS: dict[str, RouteRight] = {
    OPENAPI: OPEN,
    **{name: declared.right for name, declared in ROUTES.items()},
}
"""The right of each route of the gateway."""

WRITTEN = "Written by `pytest tests/unit/neve --rewrite`; do not edit."

CLI_HEAD = f"""# Command line

{WRITTEN}

`neve` talks to one service. It takes the first of these that is given:

1. the URL of `--url`, or the local stack of `--stack`;
2. the URL of `NEVE_URL`, or the local stack of `NEVE_STACK`;
3. the only stack that runs on this machine (`neve up`).

The bearer token is in `NEVE_TOKEN`, or in the file that `NEVE_TOKEN_FILE` names; `--token` works,
but shows it to everybody on the machine. For a local stack none is needed. `NEVE_CA_FILE` names
the authorities of a service with HTTPS, `NEVE_CLIENT_CERTIFICATE` the certificate and key of the
client. Every verb takes `--json`. Results go to standard output, messages and errors to standard
error.

{EPILOG}
"""

_CODE = re.compile(r' = "([a-z-]+)"\n +"""(.+?)"""', re.DOTALL)
CODES = "\n".join(
    f"| `{code}` | {' '.join(text.split())} |"
    for code, text in _CODE.findall(inspect.getsource(RefusalCode))
)

HTTP_HEAD = f"""# HTTP interface

{WRITTEN}

The gateway serves JSON below `/v1`; `/docs` shows the same for people and `/openapi.json`
for programs. It listens on the loopback address unless `gateway.host` says otherwise.

* **Token.** Every request wants `Authorization: Bearer <token>`, but `/healthz`, `/readyz`, `/docs`
  and `/openapi.json`, which tell nothing of tables. The token is the one of setting
  `gateway.token`, a named one (`neve token`), or one of an OpenID issuer. What its roles allow is
  in [rights.md](rights.md); `/metrics` wants `read` on all tables: Prometheus sends a token with
  `authorization.credentials_file`. Without a token a call is answered 401, without the right 403,
  about a table that the caller may not read 404.
* **Quotas.** A caller that has had its share is answered 429 with `Retry-After`. Nothing was done.
* **Audit.** Every call that is not a `GET` is noted before and after it, refused ones too:
  `GET /v1/audit`. If that is not possible, such calls are answered 503 and nothing is done.
* **Calls.** `POST …/files`, `POST …/append` and `POST …/compactions` take the header
  `Neve-Call`, a UUIDv7 that the caller makes. The same call again, within 24 hours, changes
  nothing and succeeds, though its files have been compacted and deleted since; so a caller
  that lost an answer repeats it. The answer then says `repeated`, with the counts of the
  first one and without its files. One id is one call: other content is refused
  (`call-content`). Of `append` the rows are the content, in any order and in numbers of any
  width; of `files` the paths and the sizes of the files. An id that is older than 24 hours
  and has no mark is refused (`call-too-old`): nobody can tell whether it was accepted.
  `GET …/calls/{{call}}` tells what became of an id.
* **All or nothing.** A request that is refused has changed nothing. An add or append is one
  change, however many tablets it has, and readers see all of it or nothing. So it has bounds: at
  most 10,000 files in an add (else 400), at most `gateway.body_bytes_max` in an append (else 413).
  Send more in several calls, each with an id of its own. One that loses every race against other
  changes of its tablets is answered 409; the same id may be sent again.
* **Keys** in `start`, `end` and `splits` are text: the value itself (`42`, `2024-12-31`),
  values with commas between them, or a JSON list (`["a,b", 7]`). Fewer values than key
  columns are a prefix. `start` and `end` are both included. In a table with partitions they
  are values of the partition columns, in their order, whether it has a key or not: a scan from
  `2025,4` reads the partition of April and all behind it. If the key begins with these
  columns, more of its values may follow in a scan or a count: `2025,4,17`.
* **Compactions** that users ask for are requests. `GET …/compactions/{{request}}` tells how
  far one is; bytes and time left are estimates. In a table with partitions, `start` and
  `end` are values of the partition columns. A part is cancelled by whole tablets: a range
  takes those that lie wholly in it. A request of which a part, or a job, was cancelled ends
  `done_in_part`; `cancelled` tells the ranges that were left out. A dry run tells the files
  that the selector takes, their bytes, and how many of their rows are in the range, counted
  by their keys, superseded rows among them. It does not tell how many rows a transform would
  touch: only Spark runs expressions, and another engine's answer would be a guess.

      {{"start": "100", "end": "200", "delete_where": "status = 'test'",
       "selector": {{"name": "age", "options": {{"older_than": "7d"}}}},
       "output": {{"codec": "zstd", "codec_level": 12, "row_group_bytes": "64MB"}},
       "hints": {{"pace": "slow"}}, "boost": 5, "deadline": "30m", "dry_run": false}}

  All of it may be left out. Instead of `delete_where` there may be `set` (`"a = a + 1"`),
  or `transform` with a plug-in's `name` and `options`.
* **Rows** travel as Arrow IPC streams (`application/vnd.apache.arrow.stream`). A scan that
  fails in the middle never looks like a shorter answer: its last message begins with
  `neve-problem:` and holds the problem as JSON, at which every Arrow reader stops with an
  error. While rows flow a pin keeps the files that are read; if it could not be renewed for
  two minutes the scan ends so.
* **Sizes** of settings may have binary units (`256MB`), durations `ms s m h d w` (`7d`).

## Errors

Errors are `application/problem+json` (RFC 9457): `error` is the class, `detail` one
sentence that names the value and what was expected, `code` (of a refusal by the store) one
stable word.

    {{"type": "urn:neve:error:RefusedError", "title": "…", "status": 409,
     "detail": "file a.parquet is already in the table", "error": "RefusedError", "code": "exists"}}

| `code` | what it says of a call, an added file, a table |
|---|---|
{CODES}
"""


def cli_page() -> str:
    """Return `docs/reference/cli.md`."""
    return "\n".join(
        [CLI_HEAD, *(_verb_text(path, verb) for path, verb in _verbs(build(), "neve"))]
    )


def http_page(document: dict[str, Any]) -> str:
    """Return `docs/reference/http.md`.

    Args:
        document: The OpenAPI document of the application.
    """
    rows = [f"| {kind.__name__} | {status} |" for kind, status in STATUS]
    errors = ["| class | status |", "| --- | --- |", *rows, "| all others | 500 |", ""]
    calls = [
        _call_text(method.upper(), path, call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    ]
    return "\n".join([HTTP_HEAD, *errors, "## Routes", "", *calls])


def rights_table() -> str:
    """Return the table of roles and routes, for the reference page."""
    lines = [
        "| route | read | write | compact | admin | on | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, right in ROUTE_RIGHTS.items():
        allowed = (right.role is None or right.role in INCLUDED[role] for role in Role)
        marks = " | ".join("✓" if may else "" for may in allowed)
        lines.append(f"| `{name}` | {marks} | {right.reach.value} | {right.note} |")
    return "\n".join(lines)


def _verbs(app: typer.Typer, path: str) -> Iterator[tuple[str, Any]]:
    for command in app.registered_commands:
        yield f"{path} {command.name}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _verbs(group.typer_instance, f"{path} {group.name}")


def _verb_text(path: str, verb: Any) -> str:
    given = list(inspect.signature(verb).parameters.values())
    words = [_metavar(each) for each in given if isinstance(_kind(each), ArgumentInfo)]
    lines = [
        f"## {path}",
        "",
        inspect.getdoc(verb) or "",
        "",
        f"    {' '.join([path, *words])}",
        "",
    ]
    common = {"as_json", *REMOTE} if "url" in {each.name for each in given} else {"as_json"}
    own = [each for each in given if each.name not in common]
    rows = [f"| {_written(each)} | {_kind(each).help or ''}{_default(each)} |" for each in own]
    return "\n".join([*lines, *(["| | |", "| --- | --- |", *rows, ""] if rows else [])])


def _kind(parameter: inspect.Parameter) -> Any:
    return next(
        get_arg
        for get_arg in get_args(parameter.annotation)
        if isinstance(get_arg, ArgumentInfo | OptionInfo)
    )


def _metavar(parameter: inspect.Parameter) -> str:
    name = _kind(parameter).metavar or parameter.name.upper()
    optional = parameter.default is not inspect.Parameter.empty and not name.startswith("[")
    return f"[{name}]" if optional else str(name)


def _written(parameter: inspect.Parameter) -> str:
    kind = _kind(parameter)
    if isinstance(kind, ArgumentInfo):
        return f"`{_metavar(parameter)}`"
    named = [
        param_decl
        for param_decl in (kind.default, *(kind.param_decls or ()))
        if isinstance(param_decl, str)
    ]
    return ", ".join(f"`{each}`" for each in named or [f"--{parameter.name.replace('_', '-')}"])


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default in (inspect.Parameter.empty, None, False):
        return ""
    return f" Default: `{parameter.default}`."


def _call_text(method: str, path: str, call: dict[str, Any]) -> str:
    lines = [f"### {method} {path}", "", call.get("description", ""), ""]
    rows = [
        f"| `{each['name']}` | {each['in']} | {each.get('description', '')} |"
        for each in call.get("parameters", [])
    ]
    if rows:
        lines += ["| name | where | |", "| --- | --- | --- |", *rows, ""]
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        lines += [f"Body: `{kind}`" + (f", `{name}`" if name else "") + ".", ""]
    return "\n".join(lines)
