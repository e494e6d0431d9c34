"""Literals as Spark SQL: numbers, dates and timestamps, checked down to the last digit."""

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal

from common.expressions.bounds import DIGITS_MAX
from common.expressions.nodes import Literal, LiteralKind
from common.expressions.source import Source, Span
from common.expressions.strings import quoted_text
from common.expressions.types import Kind

DATE_ALONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def literal_sql(source: Source, literal: Literal) -> tuple[str, Kind]:
    """Return a literal as SQL, and its kind.

    Raises:
        RequestError: There is no such number, day or moment.
    """
    match literal.kind:
        case LiteralKind.NUMBER:
            return _number_sql(source, literal)
        case LiteralKind.STRING:
            return quoted_text(literal.value), Kind.STRING
        case LiteralKind.BOOLEAN:
            return literal.value.upper(), Kind.BOOLEAN
        case LiteralKind.NULL:
            return "NULL", Kind.NULL
        case LiteralKind.DATE:
            return date_sql(source, literal.value, literal.span), Kind.DATE
        case LiteralKind.TIMESTAMP:
            return timestamp_sql(source, literal.value, literal.span), Kind.TIMESTAMP


def _number_sql(source: Source, literal: Literal) -> tuple[str, Kind]:
    text = literal.value
    closed = f"({text})" if text.startswith("-") else text
    if "e" in text.lower():
        # Longer ones are never written by people, and float() takes time for them.
        if len(text) > 2 * DIGITS_MAX or not math.isfinite(float(text)):
            raise source.refusal(literal.span, "the number is too large", "expected a double")
        return closed, Kind.FLOATING
    whole, _, fraction = text.lstrip("-").partition(".")
    if len(whole.lstrip("0")) + len(fraction) > DIGITS_MAX:
        expected = f"expected at most {DIGITS_MAX}"
        raise source.refusal(literal.span, "the number has too many digits", expected)
    if not -(2**63) <= Decimal(text) < 2**63:
        # Beside a whole number Spark takes a literal that no bigint reaches for true or false at
        # once, and forgets that the number may be null. Of a cast it does not.
        digits = len(whole.lstrip("0")) + len(fraction)
        return f"CAST({text} AS DECIMAL({digits},{len(fraction)}))", Kind.DECIMAL
    return closed, Kind.DECIMAL if fraction else Kind.INTEGER


def date_sql(source: Source, text: str, span: Span) -> str:
    """Return a day as SQL.

    Raises:
        RequestError: The text names none.
    """
    try:
        # The pattern first: fromisoformat() knows weeks and other spellings, too.
        day = date.fromisoformat(text if DATE_ALONE.fullmatch(text) else "")
    except ValueError as error:
        raise source.refusal(span, "this is not a date", "expected '2024-12-31'") from error
    return f"DATE '{day.isoformat()}'"


def moment_of(text: str) -> datetime:
    """Return the moment that a text names, in UTC.

    Raises:
        ValueError: It names none.
        OverflowError: It is too far away.
    """
    moment = datetime.fromisoformat(text if _TIMESTAMP.fullmatch(text) else "")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def timestamp_sql(source: Source, text: str, span: Span) -> str:
    """Return a moment as SQL; without a zone it is UTC, without a time it is midnight.

    Raises:
        RequestError: The text names none.
    """
    try:
        moment = moment_of(text)
    except (ValueError, OverflowError) as error:
        expected = "expected '2024-12-31 23:59:59.999999', with Z or +01:00 behind it if not UTC"
        raise source.refusal(span, "this is not a timestamp", expected) from error
    return f"TIMESTAMP '{moment.replace(tzinfo=None).isoformat(' ')}Z'"
