"""Whether rows of files may have expired, told without a look at them."""

from collections.abc import Sequence

import pyarrow as pa

from common.model.file import DataFile
from common.rows.rules import RowRules

CLOCK_MARGIN_S = 1.0
"""Times of files are in floating seconds; a row so close to its end may have expired."""


def may_expire(files: Sequence[DataFile], rules: RowRules, schema: pa.Schema, now_s: float) -> bool:
    """Return whether a row of some files may have expired, by what their metadata says."""
    if rules.ttl_s is None or rules.time_column is None:
        return False
    if pa.types.is_floating(schema.field(rules.time_column).type):
        return True  # An infinite past is in no file's bounds.
    safe_s = now_s - rules.ttl_s + CLOCK_MARGIN_S
    return any(file.time_min_s is None or file.time_min_s <= safe_s for file in files)
