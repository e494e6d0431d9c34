"""Maintenance operations: what could be done in a tablet, what it is worth, and what goes first.

1. `heat` learns how often a tablet is read and written.
2. `scores` has Apache Kudu's formulas: of single operations, of the workload, of table priorities,
   and the order in which its scheduler chooses.
3. `operations` lists the kinds of operations of a tablet. Each row comes from the code that
   decides: the plan, rules of splits and merges, rules of the collector, what scans look at.

    heat        decaying rates of scans and written rows per tablet
    scores      formulas, and the choice of the best operation
    operations  the rows of a tablet
"""
