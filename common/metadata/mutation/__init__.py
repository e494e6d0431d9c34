"""Every change as transactions: watches, reads, requirements, writes, and the mark.

Pure: no Redis, no event loop, no clock, no randomness.

  transaction     the vocabulary: Needs, Seen, Write, NoWrite, More, Unresolved
    needs           composable needs, and their results as values
    effects         composable effects: record, change stream, garbage, history
    call_marks      the mark of an accepted call
    files           add files; stamps of garbage, pins
    attempts        reserve, commit, release, drop a hold
    tables          create, change and drop a table
    requests        submit, cancel a range, move on, close
    selections      a request in one tablet: wait, select, complete, cancel
    split_merge     begin, step, abandon, end
    control         analyses, the leading coordinator, limits, generation, manifest, store id
    repair_files    repairs of files and their entries
    repair_records  repairs of counts, markers, holes, watermarks, overlaps
    registry        change → function that builds its first transaction

How a change becomes effects:

    1. `registry.transaction_for` finds the builder of a change.
    2. The builder names its needs: keys to watch, and reads.
    3. Its decision looks for its own mark, then asks the predicates of `common.metadata`.
    4. It returns effects and the mark, or a refusal.
"""

from common.metadata.mutation.registry import transaction_for

__all__ = ["transaction_for"]
