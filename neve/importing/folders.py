"""What partition folders mean: which columns they name, and of which types. Pure.

Types are told from all values of a column, as Spark does: whole numbers (32 bits if all
fit), else dates, else text. `__HIVE_DEFAULT_PARTITION__` is null and fits every type.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def type_of_values(texts: Iterable[str | None]) -> str:
    """Return the type of a partition column in its text form.

    Args:
        texts: What folders say; None is null. Without any value: text.
    """
    known = {text for text in texts if text is not None}
    if known and all(_WHOLE.fullmatch(text) for text in known):
        numbers = [int(text) for text in known]
        if all(-(2**31) <= number < 2**31 for number in numbers):
            return "int32"
        if all(-(2**63) <= number < 2**63 for number in numbers):
            return "int64"
    if known and all(map(_is_day, known)):
        return "date"
    return "string"


def usual_columns(folders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the columns that most files lie in folders of; of as many, those of more columns.

    Args:
        folders: Per file the columns that its folders name, in their order.
    """
    counted = Counter(tuple(each) for each in folders)
    return max(counted, key=lambda each: (counted[each], len(each), each), default=())


def _is_day(text: str) -> bool:
    if not _DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
