"""Maintenance operations: the possible operations in a tablet, their scores, and their order.

1. `heat` tracks how often a tablet is read and written.
2. `scores` has Apache Kudu's formulas for single operations, workload and table priorities, and
   the order in which its scheduler chooses.
3. `operations` lists the kinds of operations of a tablet. Each row comes from the code that makes
   the decision: the plan, the rules of splits and merges, of the collector, and of scans.

    heat        decaying rates of scans and written rows per tablet
    scores      formulas, and the choice of the best operation
    operations  the rows of a tablet
"""
