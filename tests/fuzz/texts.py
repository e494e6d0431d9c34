"""Texts that people write: expressions, keys, settings, simulations, documents of a tablet.

Each is drawn here, and read here as the service or the command line reads it, in a process of
its own: what it accepts is fine, and what it refuses it must refuse by an error of ours.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common.config import load_settings
from common.errors import CompactionError, RequestError
from common.expressions import parse_assignments, parse_predicate
from common.model.group import LimitScope
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, format_key, parse_key
from common.model.tablet import TabletId
from common.units import parse_duration_s, parse_size_bytes
from neve.simulate.specification import EXAMPLE
from tests.fuzz.junk import TEXTS, junk, spoiled, spoiled_bytes
from tests.fuzz.outcome import READ, REFUSED
from tests.support.command_line import invoke
from tests.unit.expressions.cases import PREDICATES, SCHEMA
from tests.unit.expressions.hostile import WORDS

FAULT = "fault"
REFUSAL_CHARS_MAX = 2_000
"""Of a sentence for people, however long the text was that is refused."""


def verdict(target: str, data: bytes) -> dict[str, str]:
    """Read a text as its target does; return how it ended, and what was said."""
    own = target in TEXT_TARGETS and TEXT_TARGETS[target].own
    try:
        TEXT_TARGETS[target].read(data)
    except CompactionError as error:
        said = str(error)
        shown = len(data) if own else 0
        if not said or len(said) > REFUSAL_CHARS_MAX + shown:
            return {"end": FAULT, "said": f"refused in {len(said)} characters: {said[:200]}"}
        return {"end": REFUSED, "said": said}
    except Exception:
        return {"end": FAULT, "said": traceback.format_exc()[-2_000:]}
    return {"end": READ, "said": ""}


@dataclass(frozen=True, slots=True)
class TextTarget:
    """A kind of text: how it is drawn, and how it is read."""

    draw: Callable[[random.Random], bytes]
    read: Callable[[bytes], None]
    own: bool = False
    """Whether only who runs a program writes them, who may see all of a value again."""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# ------------------------------------------------------------------------------- Expressions


def _draw_expression(draw: random.Random) -> bytes:
    case = draw.choice(PREDICATES).text
    match draw.randrange(5):
        case 0:
            words = draw.choices(WORDS, k=draw.randrange(1, 60))
            return _bytes(draw.choice(("", " ")).join(words))
        case 1:
            return spoiled_bytes(draw, _bytes(case))
        case 2:
            opened = draw.choice(("(", "not ", "-", "case when ", "cast(", "id in (", "'", "1+"))
            return _bytes((opened * draw.choice((3, 40, 3_000)) + case)[:10_100])
        case 3:
            return _bytes(f"{case} {draw.choice(('and', 'or', '=', '||'))} {draw.choice(TEXTS)}")
        case _:
            at = draw.randrange(len(case) + 1)
            return _bytes(f"{case[:at]} {' '.join(draw.choices(WORDS, k=2))} {case[at:]}")


def _read_expression(data: bytes) -> None:
    """Read it as a predicate and as assignments; refused is what is neither."""
    text, refusals = data.decode("utf-8", "surrogatepass" if b"\xed" in data else "replace"), 0
    for parse in (
        lambda: parse_predicate(text, SCHEMA).sql,
        lambda: parse_assignments(text, SCHEMA, frozenset({"id"}))[0].expression.sql,
    ):
        try:
            sql = parse()
            assert sql.isascii(), "SQL with what another parser could read otherwise"
        except RequestError as error:
            refusals += 1
            refused = error
    if refusals == 2:
        raise refused


# ------------------------------------------------------------------------------------- Keys

TYPES = (*KeyType,)
KEYS = (
    "1,a",
    '[1, "a"]',
    "+inf",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "1.5",
    "true",
    "ff",
    '["\\u0000"]',
)
SHORT = ("1h", "30s", "2 GiB", "1.5MiB", "group:default", "volume:disk-1", "0161", "last", "p=1")


def _draw_key(draw: random.Random) -> bytes:
    kinds = [draw.randrange(len(TYPES)) for _ in range(draw.choice((1, 1, 2, 3)))]
    head = ",".join(map(str, kinds))
    match draw.randrange(5):
        case 0:
            text = _bytes(draw.choice(TEXTS))
        case 1:
            values = [junk(draw) for _ in kinds]
            text = _bytes(json.dumps(values))
        case 2:
            text = _bytes("[" * draw.choice((3, 5_000, 200_000)) + "1")
        case 3:
            text = _bytes(draw.choice(SHORT) + draw.choice(("", "x", "0" * 400, "e999")))
        case _:
            text = spoiled_bytes(draw, _bytes(draw.choice((*KEYS, *SHORT))))
    return _bytes(head) + b"\n" + text


def _read_key(data: bytes) -> None:
    """Read it as a key, which must come back as it was, and as every other short text."""
    head, _, rest = data.partition(b"\n")
    numbers = [int(each) for each in head.split(b",") if each.isdigit()] or [0]
    types = [TYPES[number % len(TYPES)] for number in numbers]
    text = _text(rest)
    # A tablet that is none is a ValueError; whoever reads one says so.
    others: tuple[Callable[[str], object], ...] = (
        lambda text: TabletId.parse("t-1", text),
        LimitScope.parse,
        parse_duration_s,
        parse_size_bytes,
    )
    for other in others:
        with suppress(CompactionError, ValueError):
            other(text)
    key = parse_key(text, types)
    if key and key != PLUS_INFINITY:
        shown = format_key(key, types)
        assert parse_key(shown, types) == key, f"{shown!r} is another key"


# --------------------------------------------------------------------------- Settings, simulations

SETTINGS = """\
groups.small.compactors = {min = 0, max = 3}
groups.small.slots = 2
[store]
url = "redis://localhost:6379/0"
timeout_s = 5.0
[gateway]
port = 8787
token = "a-token-for-tests"
locations = ["/data", "s3://lake"]
body_bytes_max = "64 MiB"
insecure = false
[coordinator]
tick_s = 0.5
garbage_grace_s = "1h"
[services.default]
planner = "ratio"
groups = [{group = "small", max_size = "100 MiB"}, {group = "large"}]
[services.default.options]
ratio = "3"
[groups.large]
compactors = 1
"""
_ASSIGNED = re.compile(r"^(\s*[\w.-]+\s*=\s*)(.+)$", re.M)
TOML_VALUES = (
    *('""', "''", "0", "-1", "1e999", "nan", "-inf", "true", "[]", "{}", '"x"', '"\\u0000"'),
    *("[[[[]]]]", "9" * 30, "9" * 5_000, "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00"),
    *("0x" + "f" * 40, "[1, 'a', 2.5]", "{a = {b = {c = 1}}}", '"""', "'" + "x" * 5_000 + "'"),
    *('"\\ud800"', "[" * 3_000, "{a=" * 3_000, '"1h"', '"-1h"', '"100000000d"', '"9 EiB"'),
)


def _draw_toml(draw: random.Random, sound: str) -> bytes:
    match draw.randrange(6):
        case 0:
            return spoiled_bytes(draw, _bytes(sound))
        case 1:
            lines = sound.splitlines()
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
            return _bytes("\n".join(lines))
        case 2:
            lines = sound.splitlines()
            del lines[draw.randrange(len(lines))]
            return _bytes("\n".join(lines))
        case _:
            found = draw.choice([*_ASSIGNED.finditer(sound)])
            value = draw.choice(TOML_VALUES)
            return _bytes(f"{sound[: found.start(2)]}{value}{sound[found.end(2) :]}")


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="neve-fuzz-"))


def _file(data: bytes, name: str) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _read_settings(data: bytes) -> None:
    load_settings(_file(data, "neve.toml"), environ={})


@cache
def _example() -> str:
    lines = (line.partition("#")[0].rstrip() for line in EXAMPLE.splitlines())
    return "\n".join(line for line in lines if line)


def _read_simulation(data: bytes) -> None:
    """Read it as `neve simulate` does; what it would simulate is bounded, and not run here."""
    from neve.cli import simulate
    from neve.simulate.specification import read_specifications

    source = simulate._of_file(_file(data, "specification.toml"), (), ())
    for specification in read_specifications(source.document, simulate._reader(source.folder)):
        assert specification.days > 0


# ---------------------------------------------------------------------------- Documents of a tablet

DOCUMENT: dict[str, Any] = {
    "table": {"ratio": 3, "max_files": 10},
    "groups": [{"group": "small", "max_size": "1 KiB"}, {"group": "large"}],
    "now": 1_700_000_000,
    "kind": "SYSTEM",
    "keyed": True,
    "files": [
        {
            "path": f"{number}.parquet",
            "size": 100 * number,
            "live": 90 * number,
            "rows": number,
            "added_at": 5.5,
            "level": number % 3,
            "tombstones": 0,
            "key_min": "01",
            "key_max": "09",
            "time_min": 1.0,
            "time_max": 2.0,
            "clean": True,
        }
        for number in range(1, 7)
    ],
    "running": [{"kind": "SYSTEM", "files": ["1.parquet"]}],
    "heat": {"scans": 1.5, "rows": 100},
    "free_bytes": "1 GiB",
    "statistics": {"updated_rows": 3, "compared": 10, "changed": {"a": 0.5}, "merged": 0.1},
}
CHUNKS = {
    "keyed": False,
    "chunks": [
        {
            "start": 3600 * hour,
            "end": 3600 * (hour + 1),
            "files": [
                {
                    "path": f"{number}.parquet",
                    "size": 1000,
                    "time_min": 3600.0 * number,
                    "time_max": 3600.0 * number + 5000,
                    "version": number % 2,
                    "minor_version": 1,
                    "partitions": [0, 2],
                }
                for number in (hour - 1, hour)
                if number >= 0
            ],
        }
        for hour in range(4)
    ],
}
LISTED = [
    {
        "path": f"{number}.parquet",
        "tablet": "last",
        "size_bytes": 1000 * number,
        "rows": 10 * number,
        "added_at_s": 1_700_000_000.0 + number,
        "key_min": "1",
        "key_max": "9",
    }
    for number in range(1, 5)
]
VERBS: tuple[tuple[str, ...], ...] = (
    ("plan", "--files"),
    ("plan", "--planner", "size-tiered", "--files"),
    ("plan", "--planner", "leveled", "--files"),
    ("backlog", "--files"),
    ("backlog", "--strategy", "leveled", "--files"),
    ("backlog", "--strategy", "time-window", "--files"),
    ("plan", "--planner", "time-chunk", "--set", "skip_offset=0", "--files"),
    ("plan", "--planner", "unified", "--files"),
    ("backlog", "--strategy", "unified", "--files"),
)


def _draw_document(draw: random.Random) -> bytes:
    head = b"%d\n" % draw.randrange(len(VERBS))
    tree: Any = draw.choice((DOCUMENT, CHUNKS, LISTED))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        tree = spoiled(draw, tree)
    text = _bytes(json.dumps(tree))
    match draw.randrange(12):
        case 0:
            text = spoiled_bytes(draw, text)
        case 1:
            text = b"[" * draw.choice((100, 100_000)) + text
        case _:
            pass
    return head + text


def _read_document(data: bytes) -> None:
    """Give it to the command line, whose exit code and words tell what became of it."""
    head, _, rest = data.partition(b"\n")
    words = VERBS[int(head) % len(VERBS) if head.isdigit() else 0]
    done = invoke([*words, str(_file(rest, "files.json"))], {"NEVE_HOME": str(_folder())})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert "Traceback" not in done.output, done.output[-2_000:]
    assert done.exit_code in {0, 1, 2}, f"exit code {done.exit_code}: {done.output[-500:]}"
    if done.exit_code:
        raise RequestError(done.output.strip()[-REFUSAL_CHARS_MAX:])


TEXT_TARGETS: dict[str, TextTarget] = {
    "expressions": TextTarget(_draw_expression, _read_expression),
    "keys": TextTarget(_draw_key, _read_key),
    "settings": TextTarget(lambda draw: _draw_toml(draw, SETTINGS), _read_settings, own=True),
    "simulations": TextTarget(
        lambda draw: _draw_toml(draw, _example()), _read_simulation, own=True
    ),
    "documents": TextTarget(_draw_document, _read_document, own=True),
}
