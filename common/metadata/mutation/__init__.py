"""Every change as transactions: what is watched, read, required, written, and the mark.

Pure: no Redis, no event loop, no clock, no chance. `transaction_for` turns a change
into its first transaction; an executor does the rest (`common.metadata.executor`).

    transaction   the vocabulary: Needs, Seen, Write, Done, More, Unresolved
    requirements  composable needs, and what was seen turned into values
    effects       composable effects: record, change stream, doorbell, garbage, history
    reservations  reserve, drop hold;  attempts: commit, release;  results: what a commit leaves
    adds          add files
    tables        create and change a table;  drops: drop it
    garbage       stamps, pins;  notes: analysis, generation, manifest, coordinator
"""

from common.metadata.mutation.dispatch import transaction_for

__all__ = ["transaction_for"]
