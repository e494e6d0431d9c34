"""Ingestion of rows and files.

    routes        the routes of files and rows
    add           add files from the location: inspect each, and apply one change for all
    append        add rows: split by tablet, sort, write files, add the files
    routing       find the tablet of a file
    add_retry     retries of an add while tablets are split and merged

Check columns, versions and the call id → inspect the files (`append` writes them first) → route
each file to its tablet → add all files in one change; if a tablet was split or merged in the
meantime, `add_retry` routes the files again.
"""
