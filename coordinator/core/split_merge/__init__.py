"""The next steps of splits and merges of tablets. Pure.

1. `operation_steps` decides from sizes whether to split a tablet or to merge neighbours.
2. `split_keys` chooses split keys that balance bytes.
3. `split_jobs` plans the jobs that cut files at the split key.
4. `operation_steps` returns each next change, until the operation ends or is abandoned.

    operation_steps   the next change, and the decision to begin an operation
    split_keys        keys at which to split a tablet
    split_jobs        jobs that cut files at the key of a split
"""
