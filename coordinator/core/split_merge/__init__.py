"""What splits and merges of tablets do next. Pure.

1. `operation_steps` says from sizes that a tablet is to be split, or neighbours merged.
2. `split_keys` chooses where, so that bytes are balanced.
3. `split_jobs` plans the jobs that cut what crosses the key.
4. `operation_steps` names each next change, until the operation ends or is abandoned.

    operation_steps   the next change, and where an operation is wanted
    split_keys        where to split a tablet
    split_jobs        jobs that cut files at the key of a split
"""
