"""Names and types: a tree of words becomes SQL, or is refused."""

from collections.abc import Iterable, Sequence

from common.expressions.checked import Checked, checked, described, united
from common.expressions.functions import called
from common.expressions.literals import literal_sql
from common.expressions.nodes import Apply, Call, Case, Cast, Interval, Literal, Name, Node
from common.expressions.operators import applied, require
from common.expressions.source import Source, Span
from common.expressions.strings import VARIABLE, quoted_name
from common.expressions.suggest import suggestion
from common.expressions.types import CAST_KINDS, NUMBERS, TIMES, Kind, type_of_column
from common.model.table import Column


class Checker:
    """Checks expressions of one text against one schema, and notes the columns they read."""

    def __init__(self, source: Source, schema: Sequence[Column]) -> None:
        self._source = source
        self._schema = {column.name: column for column in schema}
        self._read: dict[str, Span] = {}

    @property
    def read(self) -> dict[str, Span]:
        """The columns that were read, with the place where each was read first."""
        return dict(self._read)

    def check(self, node: Node) -> Checked:
        """Return the node as SQL with its type.

        Raises:
            RequestError: A name is not known, or types do not fit.
        """
        match node:
            case Literal():
                sql, kind = literal_sql(self._source, node)
                return checked(sql, kind, node)
            case Interval():
                return _interval(node)
            case Name():
                return self._name(node)
            case Apply():
                return applied(self._source, node, self._all(node.args))
            case Call():
                return called(self._source, node, self._all(node.args))
            case Case():
                return self._case(node)
            case Cast():
                return self._cast(node)

    def column(self, name: str, span: Span) -> Column:
        """Return a column of the table.

        Raises:
            RequestError: The table has none of this name.
        """
        if name not in self._schema:
            raise self._unknown("column", name, span, self._schema)
        return self._schema[name]

    def _all(self, nodes: Sequence[Node]) -> tuple[Checked, ...]:
        return tuple(self.check(node) for node in nodes)

    def _name(self, node: Name) -> Checked:
        column = self.column(node.parts[0], node.spans[0])
        self._read.setdefault(column.name, node.spans[0])
        kind = type_of_column(column.type)
        for name, span in zip(node.parts[1:], node.spans[1:], strict=True):
            if kind.kind is not Kind.STRUCT:
                fact = f"{self._source.of(node.spans[0].to(span))} looks into what is {kind.kind}"
                raise self._source.refusal(span, fact, "expected a struct column before the dot")
            fields = dict(kind.fields)
            if name not in fields:
                raise self._unknown("field", name, span, fields)
            kind = fields[name]
        if any(VARIABLE in name for name in node.parts):
            expected = f"expected a name without {VARIABLE}, where Spark would put a variable"
            raise self._source.refusal(
                node.span, f"{self._source.of(node.span)} is unsafe", expected
            )
        return Checked(".".join(map(quoted_name, node.parts)), kind, node)

    def _unknown(self, what: str, name: str, span: Span, known: Iterable[str]) -> Exception:
        expected = f"expected a {what} of the table's schema{suggestion(name, known)}"
        return self._source.refusal(span, f"there is no {what} {self._source.of(span)}", expected)

    def _case(self, node: Case) -> Checked:
        conditions, results = zip(*node.branches, strict=True)
        whens = self._all(conditions)
        head = "CASE"
        if node.operand is None:
            for when in whens:
                require(self._source, when, Kind.BOOLEAN)
        else:
            _, (operand, *whens_united) = united(
                self._source, self._all((node.operand, *conditions))
            )
            head, whens = f"CASE {operand.sql}", tuple(whens_united)
        otherwise = () if node.otherwise is None else (node.otherwise,)
        kind, values = united(self._source, self._all((*results, *otherwise)), nulls=True)
        branches = "".join(
            f" WHEN {when.sql} THEN {value.sql}" for when, value in zip(whens, values, strict=False)
        )
        tail = f" ELSE {values[-1].sql}" if otherwise else ""
        return checked(f"{head}{branches}{tail} END", kind, node)

    def _cast(self, node: Cast) -> Checked:
        value = self.check(node.value)
        kind = CAST_KINDS[node.target.partition("(")[0]]
        if value.kind not in _CASTABLE[kind]:
            fact = (
                f"{described(self._source, value)}, which cannot be cast to {node.target.lower()}"
            )
            wanted = ", ".join(sorted(_CASTABLE[kind] - {Kind.NULL}))
            raise self._source.refusal(value.span, fact, f"expected one of {wanted}")
        word = "try_cast" if node.safe else "CAST"
        return checked(f"{word}({value.sql} AS {node.target})", kind, node)


def _interval(node: Interval) -> Checked:
    # Spark knows no weeks in intervals of its standard kind.
    weeks = node.unit == "week"
    count, unit = (7 * node.count, "day") if weeks else (node.count, node.unit)
    kind = Kind.DAYS if unit in ("day", "month", "year") else Kind.TIME
    return checked(f"INTERVAL '{count}' {unit.upper()}", kind, node)


_NUMBERS_FROM = {Kind.NULL, Kind.BOOLEAN, Kind.STRING, *NUMBERS}
_TIMES_FROM = {Kind.NULL, Kind.STRING, *TIMES}
_CASTABLE: dict[Kind, set[Kind]] = {
    Kind.BOOLEAN: _NUMBERS_FROM,
    Kind.INTEGER: _NUMBERS_FROM,
    Kind.DECIMAL: _NUMBERS_FROM,
    Kind.FLOATING: _NUMBERS_FROM,
    Kind.STRING: {Kind.NULL, Kind.BOOLEAN, Kind.STRING, *NUMBERS, *TIMES},
    Kind.DATE: _TIMES_FROM,
    Kind.TIMESTAMP: _TIMES_FROM,
}
assert _CASTABLE.keys() == set(CAST_KINDS.values()), "every type that can be named has a row"
