"""Parquet below the level of rows: footers, pages and row groups as bytes.

    footer       the bytes of each row group; Thrift's compact protocol
    sources      files that bytes are copied from; checksums of stored pages
    relocation   row groups at new positions, and the end of a new file: pure
    excerpts     some pages of a column as a separate file
    stitch       joins row groups of several files into one, local or in an object store

The flow of a stitch: (1) Each piece is inspected: its footer, page indexes and checks.
(2) Its bytes are copied, and no page is decoded. (3) A new footer describes the row groups at
their new positions. (4) The whole output is read back and compared.
"""
