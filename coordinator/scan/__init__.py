"""Finds work: changed tablets, and tablets that the change streams have missed.

1. `scanner` follows the change streams and reads the changed tablets, in batches.
2. `full_scan` periodically divides each table into ranges of tablets and scans several at a time.
3. It reads the records of a range, in this process or in a Ray task (`coordinator.ray_compactors`).
4. Tablets with possible work go to the scanner; tablets at rest are noted in their records.

    scanner     change streams, reads, plans
    full_scan   one cheap check of every tablet, range by range
"""
