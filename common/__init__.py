"""Vocabulary, contracts and adapters that every part of Névé shares. Imports no sibling package.

In reading order:

    errors           the error tree: who must act? Removes secrets from texts
    units            bytes and durations, parsed and printed
    documents        the one reader of untrusted values: kinds, bounds, sentences; declares settings
    primitives       digests, backoff, and maps that forget; values only
    runtime          time and random ids as ports; garbage collection and memory of a process
    model/           values without I/O: tables, tablets, files, jobs, requests, keys
    rows/            which row wins, keys and rows as bytes, schemas
    expressions/     predicates and assignments of users, as safe SQL
    spi/             the interfaces of plug-ins
    plugins          how plug-ins are found and loaded
    access_settings  the section `access` of the settings
    windows          maintenance windows: cron, length and time zone
    control_settings  the section `control` of the settings
    settings         every setting with its default
    compactor_needs  what a compactor asks of the nodes of a Ray cluster
    config           settings read: defaults < file < environment < flags; secrets from files
    log_events       every event that is logged, with its level
    telemetry        names of metrics, and the event log
    tracing          spans of attempts, sent as OpenTelemetry
    log_files        log files of a service, bounded in size
    wire             messages between gateway, coordinator and compactor
    coordinator_proxy  starts the actors, and calls the coordinator's, also across releases
    lake/            tables of other formats: their versions and files, and commits to them
    metadata/        the store: changes as values, executed in Redis
    storage_threads  threads that wait for storage
    readers/         processes that open untrusted files
    parquet/         files in a table's location
"""
