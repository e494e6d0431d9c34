"""The coordinator: finds work, orders it, assigns it, and drives requests to their end.

This package decides; `compactor` rewrites files. Neither imports the other. `core` and `plugins`
compute on values only; the surrounding shell does the I/O.

How a change of a tablet becomes a job of a compactor:

1. `scan.scanner` receives the change of a tablet (or `scan.full_scan` finds it), reads the tablet
   and asks its planners through `registry` and `core.planning`. The plan is an event.
2. `service` passes the event to `core.state`: the plan replaces the tablet's queued jobs, and the
   best jobs are matched with waiting compactors. The result is a list of actions.
3. `service` performs the actions: it reserves the inputs of a job in the store, or releases
   them. The store's answer is another event.
4. Once a job is reserved, the compactor receives its assignment and commits on its own. Its report,
   or the change of the tablet, ends the attempt in `core`, and the tablet is planned again.

    actor           the Ray actor: options, calls from outside, loops; no decisions
    wiring          connects the parts; their counters as metric values
    service         one turn at a time: events in, actions performed, answers back; spans
    context         shared by the shell: store, clock, log, storage, failures of one table
    autoscaler      keeps the number of compactors that the work needs
    ray_compactors  compactors as Ray actors: start, shut down, kill
    store_watch     the lead, rate limits, the store's health, snapshots of recorded values
    core            decisions, without I/O
    scan            finds work: change streams, full scan
    requests        drives requests of users, and automatic requests of tables
    lake            follows the logs of lake tables: mirror, attempts, own waste
    maintenance     runs and lists operations of tables and tablets
    triggers        fires triggers
    split_merge     drives splits and merges
    storage         deletes replaced files, publishes manifests
    registry        planners and dispatcher named by the settings
    plugins         the built-in plug-ins
    ports           what the shell needs from outside, apart from the store
"""

import os

# Before pyarrow is loaded: parts of it keep the allocator that they begin with.
# See `common.runtime.share_freed_memory`.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
