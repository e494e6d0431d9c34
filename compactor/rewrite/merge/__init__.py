"""The merge of a keyed table by the kernel, as tasks.

    driver       the job: ranges are divided, merged in tasks, joined; in several passes if need be
    ranges       the keys of each task, and the row groups to copy: pure
    tasks        one range, one run, or a whole job; a transform of decoded rows
    io           runs, throttled reads, decoding and encoding in threads

The flow: (1) `ranges` finds row groups to copy. (2) `driver` merges longer runs first, if
the overlapping rows do not fit into a task. (3) Each task of `tasks` merges one range. (4) `driver`
joins parts and copied row groups into the outputs.
"""
