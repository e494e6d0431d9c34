"""`neve simulate`: days of compaction in seconds, decided by the code of the service.

    a specification (TOML) → tables, arrivals, cluster → events on a virtual clock → figures → page

In reading order:

    example        the specification that `--example` prints
    specification  a document becomes values, or a sentence that says what is wrong
    sections       one section of it, read key by key within bounds
    recording      arrivals of a service, gathered and read; files to begin with
    service        a specification of a table of a running service
    arrivals       when files come, to which tablet, how large
    rows           how many rows a merge leaves, as expected numbers
    disturbances   requests of users, attempts that die, compactors that are lost: when
    tablet         files of a tablet, and what a commit leaves
    cluster        compactors, slots, volumes, scaling
    control        the controller, and what its decisions let start
    requests       what a request does in its tablet, by the steps of the service
    world          the events, and the decisions that follow from them
    figures        samples, waits and sums; backlog and live bytes
    charts         lines over time as SVG
    side_by_side   variants in processes of their own
    report         JSON, CSV, pictures, and a page that stands alone
"""
