"""What metadata says of inputs that is as good as having read them: pure.

A file's facts were found by reading all of its rows, when it was added or verified, and the
file is still the same one. Who copies its row groups need not read them again.
"""

from collections.abc import Sequence

import pyarrow as pa

from common.model.file import DataFile
from common.rows.dead_rows import may_expire
from common.rows.row_facts import RowFacts, facts_of_file
from common.rows.rules import RowRules


def clean_facts(
    files: Sequence[DataFile], rules: RowRules, schema: pa.Schema, now_s: float
) -> dict[int, RowFacts]:
    """Return the facts of those inputs whose keys ascend and whose rows are all alive.

    Args:
        files: The inputs.
        rules: Of the table.
        schema: Of its rows.
        now_s: The job's `now`.
    """
    return {
        at: facts_of_file(file)
        for at, file in enumerate(files)
        if file.clean and not may_expire([file], rules, schema, now_s)
    }
