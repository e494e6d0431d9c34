"""Every change as transactions: what is watched, read, required, written, and the mark.

Pure: no Redis, no event loop, no clock, no chance.

    transaction     the vocabulary: Needs, Seen, Write, NoWrite, More, Unresolved
    needs           composable needs, and what was seen turned into values
    effects         composable effects: record, change stream, garbage, history
    call_marks      the mark of an accepted call
    files           add files; stamps of garbage, pins
    attempts        reserve, commit, release, drop a hold
    tables          create, change and drop a table
    requests        submit, cancel a range, move on, close
    selections      a request in one tablet: wait, select, complete, cancel
    split_merge     begin, step, give up, end
    control         analyses, who coordinates, limits, generation, manifest, store id
    repair_files    repairs of files and their entries
    repair_records  repairs of counts, markers, holes, watermarks, overlaps
    registry        change → function that builds its first transaction

How a change becomes effects:

    1. `registry.transaction_for` finds the builder of a change.
    2. The builder names its needs: keys to watch, and reads.
    3. Its decision looks for its own mark, then asks the predicates of `common.metadata`.
    4. It answers with effects and the mark, or with a refusal.
"""

from common.metadata.mutation.registry import transaction_for

__all__ = ["transaction_for"]
