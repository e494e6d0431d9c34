"""Rows and files: adds, appends, ids of calls, and scans.

    add           add files from the location: inspect each, route each, apply one change for all
    buffered      buffer rows until a flush: routes, bodies, delays; flush on request
    group_commit  check and append the rows of all calls that wait, in one transaction
    ingestion     append rows: split by tablet, sort, write files, add the files; and the routes
    calls         ids of calls: what counts once, how a repetition is answered
    scan          read the rows of a table

Check columns, versions and the call id → inspect the files (`ingestion` writes appended rows first)
→ route each file to its tablet → add all files in one change; if a tablet was split or merged in
the meantime, `add` routes the files again.
"""
