"""`neve fsck`: check a table's metadata against itself and against storage.

    table_check     all checks, in order
    tablet_checks   checks of single tablets and of neighbouring tablets (pure)
    file_checks     comparison of a file with its metadata entry
    repair          repairs as conditional changes, in an order without conflicts

Check tablets → compare files and orphans with storage → report each problem as a finding with
the changes that repair it → `repair` applies those that the caller allows, and checks again.
"""
