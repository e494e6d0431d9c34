"""The functions that may be called. What is not in this table does not exist.

Each is deterministic, reads nothing but its arguments, and makes a value that is at most
a constant times as long as they are.
"""

import re
from dataclasses import dataclass

from common.expressions.checked import Checked, as_kind, checked
from common.expressions.nodes import Call
from common.expressions.operators import Args, require
from common.expressions.shapes import SHAPES
from common.expressions.source import Source
from common.expressions.suggest import suggestion
from common.expressions.types import NUMBERS, TIMES, Kind

_TEXT, _NUMBER = (Kind.STRING,), NUMBERS
_WHOLE = (Kind.INTEGER,)
_DAY = (Kind.DATE, Kind.TIMESTAMP)
_MOMENT = (Kind.TIMESTAMP, Kind.DATE)
"""Of two times, the first is the one that the argument becomes."""


@dataclass(frozen=True, slots=True)
class Function:
    """What a function takes and gives.

    Attributes:
        params: The kinds that each argument may have.
        result: The kind of the result; None: that of the first argument.
        optional: How many arguments at the end may be left out.
        small: How many at the end Spark takes as INT alone; wider ones are cast.
    """

    params: tuple[tuple[Kind, ...], ...]
    result: Kind | None
    optional: int = 0
    small: int = 0


FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(("upper", "lower", "trim", "ltrim", "rtrim"), Function((_TEXT,), Kind.STRING)),
    "length": Function((_TEXT,), Kind.INTEGER),
    "substring": Function((_TEXT, _WHOLE, _WHOLE), Kind.STRING, optional=1, small=2),
    "abs": Function((_NUMBER,), None),
    **dict.fromkeys(
        ("year", "quarter", "month", "day", "dayofweek", "dayofyear", "weekofyear"),
        Function((_DAY,), Kind.INTEGER),
    ),
    **dict.fromkeys(("hour", "minute", "second"), Function((_MOMENT,), Kind.INTEGER)),
    **dict.fromkeys(("date_add", "date_sub"), Function((_DAY, _WHOLE), Kind.DATE, small=1)),
    "add_months": Function((_DAY, _WHOLE), Kind.DATE, small=1),
    "datediff": Function((_DAY, _DAY), Kind.INTEGER),
    "timestamp_seconds": Function((_NUMBER,), Kind.TIMESTAMP),
    "timestamp_millis": Function((_WHOLE,), Kind.TIMESTAMP),
    "timestamp_micros": Function((_WHOLE,), Kind.TIMESTAMP),
    "unix_seconds": Function((_MOMENT,), Kind.INTEGER),
    "unix_millis": Function((_MOMENT,), Kind.INTEGER),
}

NAMES = frozenset({*FUNCTIONS, *SHAPES})
# Known to users of Spark, but told apart by when, where or by whom they are run.
_UNFIXED = re.compile(
    r"current_\w+|rand\w*|uuid|shuffle|localtimestamp|unix_timestamp|input_file_\w+|"
    r"monotonically_increasing_id|spark_partition_id|user|session_user"
)


def called(source: Source, node: Call, args: Args) -> Checked:
    """Return a call with checked arguments.

    Raises:
        RequestError: There is no such function, or it does not take them.
    """
    if shape := SHAPES.get(node.name):
        return shape(source, node, args)
    function = FUNCTIONS.get(node.name)
    if function is None:
        raise _unknown(source, node)
    most = len(function.params)
    if not most - function.optional <= len(args) <= most:
        counts = f"{most - function.optional} or {most}" if function.optional else str(most)
        fact = f"{node.name} has {len(args)} arguments"
        raise source.refusal(node.span, fact, f"expected {counts}")
    pairs = zip(args, function.params, strict=False)
    written = [_argument(source, arg, kinds).sql for arg, kinds in pairs]
    for at in range(most - function.small, len(args)):
        written[at] = f"CAST({written[at]} AS INT)"
    return checked(f"{node.name}({', '.join(written)})", function.result or args[0].kind, node)


def _argument(source: Source, part: Checked, kinds: tuple[Kind, ...]) -> Checked:
    if kinds[0] in TIMES and part.text_literal is not None:
        return as_kind(source, part, kinds[0])
    require(source, part, *kinds)
    return as_kind(source, part, kinds[0]) if kinds[0] in TIMES else part


def _unknown(source: Source, node: Call) -> Exception:
    if _UNFIXED.fullmatch(node.name):
        expected = "expected now(), which is one moment for the whole job, or a fixed value"
        return source.refusal(node.span, f"{node.name} gives no fixed result", expected)
    expected = f"expected a listed function{suggestion(node.name, NAMES)}"
    return source.refusal(node.span, f"there is no function {node.name}", expected)
