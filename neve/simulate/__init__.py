"""`neve simulate`: days of compaction in seconds, with the decisions of the service's code.

    a specification (TOML) → tables, arrivals, cluster → events on a virtual clock → figures → page

In reading order:

    specification  turns a document into values, or raises an error that names the key
    sections       reads one section key by key, with bounds; controller, requests and failures
    recording      arrivals and initial files of a running service; its tables as a specification
    rows           how many rows a merge leaves, as expected numbers
    tablet         the files of a tablet: when they arrive, and the result of a commit
    cluster        compactors, slots, volumes, scaling; the steps of requests
    world          the events, and the resulting decisions
    figures        samples, wait times and totals; backlog and live bytes
    side_by_side   runs each variant in its own process
    report         JSON, CSV, lines over time, and a self-contained HTML page
"""
