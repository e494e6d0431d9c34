"""The coordinator: finds work, orders it, hands it out, and follows requests to their end.

What lives here decides; what rewrites files is `compactor`, and neither imports the other.
`core` and `plugins` are values in, values out; the shell round them does I/O.

How a change of a tablet becomes a job of a compactor:

1. `scan.scanner` hears that a tablet changed (or `scan.full_scan` finds it), reads it and asks
   its planners by `registry` and `core.planning`. The plan is an event.
2. `service` lets `core.state` handle the event: the plan replaces what is queued for the tablet,
   and the best jobs meet the compactors that wait. What shall be done comes back as actions.
3. `store_actions` performs them: it reserves the inputs of a job in the store, or releases
   them. The answer of the store is an event again.
4. Once a job is reserved, the compactor gets its assignment. It commits by itself; its report,
   or the change of the tablet, ends the attempt in `core`, and the tablet is planned again.

    actor           the Ray actor: options, calls from outside, loops; no decisions
    wiring          puts the parts together
    figures         what the parts have counted, as values of metrics
    service         one turn at a time: events in, actions performed, answers back as events
    store_actions   reserve, release, and the analyses that are written in the background
    context         what every part of the shell is given: store, clock, ids, log, threads
    autoscaler      keeps as many compactors as the work wants
    job_traces      spans of attempts: the attempt itself, and what came before its compactor
    ray_compactors  compactors as Ray actors: started, shut down, killed
    store_watch     who leads, which rate limits hold, how the store is
    core            decisions, without I/O
    scan            finds work: change streams, full scan
    requests        drives user requests, and those that tables make by themselves
    maintenance     lists what could be done in tablets
    triggers        has planners asked: at intervals, and for operators
    split_merge     drives splits and merges
    storage         deletes replaced files, publishes manifests, counts generations
    table_faults    work on one table that fails, left alone while the rest goes on
    registry        planners and dispatcher that the settings name
    plugins         the built-in ones
    ports           what the shell needs of the outside, beside the store
"""
