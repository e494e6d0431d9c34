"""The store: changes as values, their decisions, and the adapter over Redis.

    changes/                change → watches, reads, decision, effects, mark
    store_values            stored values other than tables, tablets and requests
    keys                    names of all keys
    codec/                  all stored values as bytes
    keyspace                the port under the store, and the Redis commands that are used
    executor                repeats a transaction until its outcome is known
    bulk_reads              many tablets in few round trips; the tile rule
    store                   `TabletStore`: what the rest of the system may ask; all tablets
    redis/                  the keyspace in Redis
    file_pin                a pin that lasts as long as a piece of work

How a change is made:

    1. A service builds a change and hands it to `TabletStore.apply`.
    2. The change's function in `changes` makes a transaction: keys to watch, reads, a decision.
    3. `executor` watches, reads, lets the predicates decide, and executes the effects.
    4. After a conflict or a lost answer it looks for the mark, and tries again within bounds.
"""
