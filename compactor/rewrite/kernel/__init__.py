"""The kernel: sorted runs in, surviving rows out, in bounded memory.

  range_merge       one key range, in consecutive steps of bounded size
  winners           rows in the kernel's form; the winners of one step, by sorting packed numbers
  normalized_keys   keys as words that sort like the keys; bounds of row groups
  reader            decodes row groups; reads back what was written

Rows follow `common.rows` exactly. The kernel refuses what it does not support, and the general way
of `common.rows` takes over. The design is explained in docs/design/0007-merge-kernel.md.

The flow: (1) `reader` decodes row groups in the order of their least keys. (2) `range_merge`
divides the rows below the next least key into steps. (3) `winners` finds the winning rows of a
step. (4) The surviving rows are gathered and yielded, by key.
"""
