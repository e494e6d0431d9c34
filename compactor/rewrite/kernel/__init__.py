"""The native merge: sorted runs in, rows that stay out, in bounded memory.

    words     key columns as unsigned 64-bit numbers that sort like the keys
    bounds    encoded keys in the same words; what Parquet statistics say of row groups
    order     which rows of one step win, by sorting packed numbers
    reading   row groups of inputs, decoded, with the words of their keys
    named_errors  whose file it was
    page_sums  checksums of stored pages
    stored_rows  rows of a row group, or of a piece of one, by Arrow
    slices    rows that are settled, and where they are cut
    step      the rows of one step, joined
    steps     one range of keys, a step of bounded size after the other
    parts     what was written, read back

Rows follow `common.rows` to the letter; what a fast way here does not know, the general
one of `common.rows` does. Facts behind the design: docs/design/0007-merge-kernel.md.
"""
