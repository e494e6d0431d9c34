"""`neve fsck`: a table's metadata is held against itself and against what is in storage.

    table_check     all checks in order
    tablet_checks   tablets by themselves and between neighbours (pure)
    file_checks     is a file what its entry says?
    repair          findings become conditional changes, in an order in which none spoils another

Tablets are checked → files and orphans are compared with storage → each problem is a finding with
the changes that would mend it → `repair` applies those that the caller allows, and checks again.
"""
