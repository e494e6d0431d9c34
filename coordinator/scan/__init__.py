"""Finds work: which tablets have changed, and what the change streams have missed.

1. `scanner` follows the change streams and reads what changed, in batches.
2. `full_scan` divides each table into ranges of tablets now and then, several at a time.
3. `scan_ranges` reads the records of a range, here or in a task of Ray (`ray_ranges`).
4. What must be looked at goes to the scanner; what rests is noted in the tablet's record.

    scanner       change streams, reads, plans
    full_scan     one cheap look at every tablet
    scan_ranges   one range of a full scan
    ray_ranges    ranges as Ray tasks
"""
