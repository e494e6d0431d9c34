"""Rows and files come in.

    routes        the routes of files and rows
    add           add files of the location: look into each, one change for all
    append        rows: cut by tablet, sorted, written, then added
    routing       which tablet a file belongs to
    add_retry     what an add does while tablets are split and merged

Columns, versions and the call id are checked → files are inspected (`append` writes them first) →
each is routed to its tablet → one change adds all; if a tablet was split or merged meanwhile,
`add_retry` routes again.
"""
