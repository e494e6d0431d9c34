"""Lake tables: tables whose truth is the log or catalog of another format. Knows no engine.

In reading order:

    source  the port `TableSource` and the values that cross it; no word of any format
    rules   what an attempt may commit, and the steps of publishing, as decisions without I/O
    storage  files of a table's root, and the creation of one only if it is absent
    delta/  Delta tables
    iceberg/  Iceberg tables
    open    the source of a table, by the name of its format
    mirror  a version as the store mirrors it: tablets, files, differences between two versions
"""
