"""Rewrites files by the row rules: read, merge, write, verify. Nothing here commits.

    attempt                  the entry: one attempt in the driver process, the choice of its way;
                             the ways without a merge: row groups copied, or all rows expired
    plan/                    the plan of a rewrite, from assignment and footers
    live_rows                an analysis: live bytes of each file, from a few columns
    merge/                   the way `merge`: ranges, tasks, joining
    kernel/                  the merge of one range: keys, steps, winners
    general_merge            the other ways, for jobs that the kernel does not support
    lake                     lake tables: deleted rows left out, offsets of the others kept
    lake_sort                rows of a lake table in its sort order: runs, and their merge
    transform                a transform applied to rows, in the kernel or by Spark
    spark_tasks              tasks on Spark: each once, jobs of one task together; Spark's errors
    outputs                  outputs, also cut at times; the outcome of a task
    parallel_column_writer   a file whose columns are encoded by several threads
    by_size                  the configurer `by-size`
    verify                   reads outputs again and compares them with the inputs
    memory_budget            how much one task may hold; threads of a merge within it
    memory                   limits the memory of tasks, explains a lack of memory
    attempt_folder           the attempt's own folder: progress, changed rows, its grant
    file_io                  inputs and outputs as files
    parquet_bytes/           Parquet below the level of rows: footers, pages, copying

The flow: (1) `attempt` makes a plan from the assignment and the footers. (2) It selects
the cheapest correct way. (3) Tasks read, merge and write the outputs under their final
names. (4) `verify` reads the outputs again; only then is the result returned.
"""
