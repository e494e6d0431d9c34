"""The reference pages written from the code: one for each noun, and `http.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, get_args

from typer.models import ArgumentInfo, OptionInfo

from common.model.outcome import RefusalCode
from common.telemetry import METRICS, Metric
from neve.cli import app
from neve.cli.session import REMOTE, Verb
from neve.client import Client
from neve.gateway.access.callers import OPEN, DeclaredRoute, RouteRight, declared_routes
from neve.gateway.console import AccessRoutes
from neve.gateway.problems import STATUS
from neve.gateway.server import SLICES
from neve.gateway.service import ProbeRoutes

OPENAPI = "GET /openapi.json"
KINDS = (ProbeRoutes, AccessRoutes, *SLICES)
ROUTES: dict[str, DeclaredRoute] = {
    declared.name: declared for kind in KINDS for _, declared in declared_routes(kind)
}
ROUTE_RIGHTS: dict[str, RouteRight] = {
    OPENAPI: OPEN,
    **{name: declared.right for name, declared in ROUTES.items()},
}
"""The right of each route of the gateway."""

WRITTEN = "Written by `pytest tests/unit/neve --rewrite`; do not edit."

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
  `gateway.token`, a named one (`neve token`), or one of an OpenID issuer. Roles are described
  in [rights.md](rights.md), and each route names the right that it requires;
  `/metrics` wants `read` on all tables: Prometheus sends a token with
  `authorization.credentials_file`. Without a token a call is answered 401, without the right
  403, about a table that the caller may not read 404.
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
* **Ids** of jobs, attempts, requests, tablets, operations and compactors may be shortened to a
  prefix that only one of them has. Calls that change rows or bounds of a tablet need its whole
  id: the id of a tablet that is gone may be a prefix of another one.
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


NOUNS = {
    "tables": "Creation, change and description of tables.",
    "tablets": "Tablets, their splits and merges.",
    "rows": "Adding, appending and reading rows.",
    "imports": "Directories that become tables, and manifests for other engines.",
    "requests": "Compactions that users request.",
    "jobs": "Queued, running and finished jobs.",
    "compactors": "Compactors, groups, scaling and limits.",
    "planning": "Plans, backlog, triggers, maintenance and simulation.",
    "control": "The controller, and reports of readers.",
    "access": "Tokens, rights and the audit.",
    "recovery": "Checks, sweeps, rebuilds, backups and restores.",
    "service": "The service as a whole, and its processes.",
}
"""The subjects of the operator's world; each has a reference page."""
NOUN_OF_MODULE = {
    "simulate": "planning",
    "console": "access",
    "table_summaries": "tables",
    "lake": "tables",
    **dict.fromkeys(("doctor", "serve", "stack", "top"), "service"),
}
NOUN_OF_METRIC = {
    "audit": "access",
    "scan": "rows",
    "scans": "rows",
    "queue": "jobs",
    "table": "tables",
    "backlog": "planning",
    "feed": "planning",
    "full": "planning",
    "trigger": "planning",
    "compactor": "compactors",
    "series": "control",
    "throttle": "compactors",
    "selector": "requests",
}
"""Second word of a metric's name → noun; other words are nouns, or of the service."""
METRIC_COLUMNS = "| metric | kind | labels | meaning |\n| --- | --- | --- | --- |"
PAGES_LIST = "\n".join(f"* [{noun}]({noun}.md): {text}" for noun, text in NOUNS.items())
"""Links to the pages of the nouns."""


def noun_page(noun: str, document: Mapping[str, Any]) -> str:
    """Return the reference page of a noun: verbs, methods, routes and metrics.

    Args:
        noun: A key of `NOUNS`.
        document: The OpenAPI document of the application.
    """
    verbs = [_verb_text(verb) for verb in app.verbs() if _noun(verb.run) == noun]
    methods = [
        _method_text(name, method)
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_") and _noun(method) == noun
    ]
    routes = [
        _route_text(name, document)
        for kind in KINDS
        for method, declared in declared_routes(kind)
        if _noun(getattr(kind, method)) == noun
        for name in [declared.name]
    ]
    metrics = [_metric_text(metric) for metric in METRICS if _noun_of_metric(metric) == noun]
    parts = [f"# {noun.capitalize()}", WRITTEN, NOUNS[noun]]
    for title, entries in (("Verbs", verbs), ("Python", methods), ("Routes", routes)):
        parts += [f"## {title}", *entries] if entries else []
    parts += ["## Metrics", "\n".join([METRIC_COLUMNS, *metrics])] if metrics else []
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _noun(function: Any) -> str:
    """Return the noun of a function: the name of its module."""
    module = (*function.__module__.split("."), "service")[2]
    return NOUN_OF_MODULE.get(module, module)


def _noun_of_metric(metric: Metric) -> str:
    word = metric.name.split("_")[1]
    noun = NOUN_OF_METRIC.get(word, word)
    return noun if noun in NOUNS else "service"


def _metric_text(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def http_page() -> str:
    """Return `docs/reference/http.md`."""
    rows = [f"| {kind.__name__} | {status} |" for kind, status in STATUS]
    errors = ["| class | status |", "| --- | --- |", *rows, "| all others | 500 |", ""]
    return "\n".join([HTTP_HEAD, *errors, "## Routes", "", PAGES_LIST, ""])


def _method_text(name: str, method: Any) -> str:
    """Return the text of a method of the client, with its arguments as a list."""
    shown = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = parameter.default
        given = "" if default is inspect.Parameter.empty else f"={default!r}"
        shown.append(f"{parameter.name}{given}")
    text = re.sub(r"^    (\w+): ", r"* `\1`: ", inspect.getdoc(method) or "", flags=re.M)
    text = re.sub(r"^(Args|Raises|Returns):$", r"\1:\n", text, flags=re.M)
    text = re.sub(r"^        ", "  ", text, flags=re.M)
    return f"### {name}\n\n    {name}({', '.join(shown)})\n\n{text}"


def _verb_text(verb: Verb) -> str:
    given = list(inspect.signature(verb.with_signature()).parameters.values())
    words = [_metavar(each) for each in given if isinstance(_kind(each), ArgumentInfo)]
    lines = [
        f"### neve {verb.words}",
        "",
        inspect.getdoc(verb.run) or "",
        "",
        f"    {' '.join(['neve', verb.words, *words])}",
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


def _route_text(name: str, document: Mapping[str, Any]) -> str:
    method, path = name.split(" ")
    call = document["paths"].get(path, {}).get(method.lower(), {})
    lines = [f"### {name}", "", call.get("description", ""), "", _right_text(ROUTE_RIGHTS[name])]
    rows = [
        f"| `{each['name']}` | {each['in']} | {each.get('description', '')} |"
        for each in call.get("parameters", [])
    ]
    if rows:
        lines += ["", "| name | where | |", "| --- | --- | --- |", *rows]
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        model = content["schema"].get("$ref", "").rpartition("/")[2]
        lines += ["", f"Body: `{kind}`" + (f", `{model}`" if model else "") + "."]
    return "\n".join(lines)


def _right_text(right: RouteRight) -> str:
    """Return the right that a route requires, as a sentence."""
    if right.role is None:
        return "Right: none."
    note = f"; {right.note}" if right.note else ""
    return f"Right: `{right.role.value}` on {right.reach.value}{note}."
