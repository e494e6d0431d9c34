"""What a directory holds that could be a table: listed, looked into, surveyed. Nothing is written.

    files         which files there are, and what each footer says      reads the location
    survey        which of them make one table, and why others do not   pure

Names are listed → footers are read → partition folders and schemas are united → `Survey` says
columns, files and misfits. `neve.gateway.imports` makes the table.
"""
