"""Survey of a directory for an import. Nothing is written.

    files         list the files, and read their footers                    reads the location
    survey        find the files that make one table, and explain misfits   pure

List the files → read footers → unite partition folders and schemas → return a `Survey` with
columns, files and misfits. `neve.gateway.imports` creates the table.
"""
