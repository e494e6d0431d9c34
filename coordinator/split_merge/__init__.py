"""Drives splits and merges. `core.split_merge` decides on their next changes.

1. The scanner passes each tablet that it reads to `driver`.
2. `driver` splits tablets that are too large, and searches records for small neighbours.
3. `key_sampling` chooses split keys from the bounds of files and from key samples.
4. `step_runner` applies one change after another, until the operation has to wait.

    driver         chooses tablets and times
    step_runner    takes steps, begins operations
    key_sampling   chooses split keys
"""
