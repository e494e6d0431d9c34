"""Row groups copied as bytes: no page is decoded, only a new footer is written.

`stitching.stitch` is the door; `compactor.rewrite.worth` says when it pays.
"""
