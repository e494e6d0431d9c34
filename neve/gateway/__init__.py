"""The gateway: the HTTP interface of store and coordinator. It makes no compaction decisions.

    server              the application with the routes of all slices, and the HTTP server
    tls                 the certificate, and when TLS is required
    actor               the Ray actor that runs the application
    authentication      middleware for all requests: token, quota, audit, limits
    access/             callers, rights of routes, quotas, audit
    bodies              bodies of requests, and progress of long work as lines of JSON
    problems            errors as `application/problem+json`
    services            dependencies of all slices: ports, settings, threads, look-ups
    store_watch         whether the store answers, and since when
    console             pages of the console: sign-in, changes, events, shared answers; links
    table_locations     allowed locations of tables, and their owners
    table_settings      table settings that users may change, and their bounds
    key_views           keys, files, tablets and stories in user notation
    lake                attach and detach tables of other formats
    tables              create, list, describe, change, pause, drop
    table_summaries     figures of tables for lists, and their maps, from some of their tablets
    tablets             explain, story, live bytes, quarantine, watermarks, splits and merges
    rows/               add, append, scan, count, ids of calls
    table_files         files of tables, and merge on read of one tablet
    imports             import of an existing directory as a table
    requests            submit, follow, cancel, dry run
    request_checks      validation of a user's request
    jobs                running and finished jobs, activity of tables
    compactors          compactors, groups, scaling, limits on bytes per second
    planning            queue, plan, backlog, triggers, maintenance; simulations
    service             status, settings, audit, probes, metrics as Prometheus text
    notify/             messages to operators, by webhook and e-mail
    control             state of the controller; reports of read latency
    recovery            fsck, gc, rebuild, backup, restore

A call: `authentication` admits it → a route of a slice checks the input → the route applies one
change to the store, or asks the coordinator → the result becomes a wire model, an error becomes a
problem.
"""

import os

# Before pyarrow is loaded: parts of it keep the allocator that they begin with.
# See `common.runtime.share_freed_memory`.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
# Freed memory goes back to the system. Otherwise the allocator keeps its addresses, which count
# towards `gateway.memory_max`: after one call that was too large, the others would be refused.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "retain:false")
