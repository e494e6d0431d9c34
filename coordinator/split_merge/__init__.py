"""Drives splits and merges. What they do next is decided in `core.split_merge`.

1. The scanner shows `driver` each tablet that it reads.
2. One that has grown too large is split; `driver` walks over records for small neighbours.
3. `key_sampling` finds where to split, from files' bounds and samples of keys.
4. `step_runner` applies one change after the other, until it has to wait.

    driver         which tablets, and when
    step_runner    takes steps, begins operations
    key_sampling   chooses where a tablet is split
"""
