"""The gateway: HTTP in front of the store and the coordinator. It decides nothing about compaction.

    app                 the application: routes out of the slices, probes, metrics
    server              connections and the HTTP server
    tls                 its certificate, and when it must have one
    actor               runs the application in a Ray actor
    authentication      what every request passes before a route sees it
    access/             callers, rights of routes, quotas, audit
    request_bodies      how long bodies may take, and where large ones wait
    problems            every error as `application/problem+json`
    metrics             metrics as Prometheus text
    services            what the slices share: ports, settings, threads, look-ups
    table_locations     where tables may be, and whose locations are
    table_settings      settings that a user changes, each within its bounds
    key_views           keys, files and tablets as users write and see them
    story_views         the story of a tablet, as sentences
    tables              create, list, describe, change, pause, drop
    call_ids            what a call id means; repeated calls
    ingest/             add and append
    table_files         files of tables, and merge on read of one tablet
    scan_slots          how many scans at a time, and how much of them waits in memory
    scan                scan, count, export
    imports             an existing directory becomes a table
    requests/           submit, follow, cancel, dry run
    split_merge         splits and merges that users wish for
    work                status, jobs, queue, plan, explain, history, compactors, limits
    control             what the controller decides; how long readers wait
    progress_stream     long work as lines of JSON
    recovery            fsck, gc, rebuild, backup, restore

A call: `authentication` lets it pass → a route of a slice checks what was written → one change as
a value goes to the store, or a question to the coordinator → the answer becomes a wire model, an
error a problem.
"""
