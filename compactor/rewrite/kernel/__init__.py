"""The kernel: sorted runs in, rows that stay out, in bounded memory.

    range_merge       one range of keys, a step of bounded size after the other
    winners           which rows of one step win, by sorting packed numbers
    decoded_rows      rows as the kernel holds them, and slices of them
    normalized_keys   keys as words that sort like the keys; bounds of row groups
    reader            decodes row groups; reads back what was written
    concurrency       an ordered map over few threads, and the memory in use

Rows follow `common.rows` to the letter. The kernel refuses what it does not support, and the
general way of `common.rows` takes over. Facts behind the design: docs/design/0007-merge-kernel.md.

The flow: (1) `reader` decodes row groups in the order of their least keys. (2) `range_merge`
cuts the rows below the next least key into steps. (3) `winners` finds the rows of a step that
win. (4) The rows that stay are gathered and yielded, by key.
"""
