"""Rewrites files by the row rules: read, merge, write, verify. Nothing here commits.

    attempt                  the entry: one attempt in the driver process
    plan/                    the plan of a rewrite, from assignment and footers
    choose                   the ways of a job, and the choice among them
    drop_job                 the way `drop`: a whole job whose rows have all expired
    live_rows                an analysis: live bytes of each file, from a few columns
    stitch_job               the way `stitch`: a whole job is copied as row groups
    merge/                   the way `merge`: ranges, tasks, joining
    kernel/                  the merge of one range: keys, steps, winners
    general_merge            the other ways, for jobs that the kernel does not support
    task_result              the outcome of a task, for the driver
    tally                    counts, digest and order of rows
    transform                a transform applied to rows
    transform_expressions    expressions of a transform, evaluated by Spark
    spark_tasks              tasks on Spark: each once, small jobs together; Spark's errors
    output_writer            outputs, and the row groups of one file
    time_cut_writer          outputs cut at times, several at once
    parallel_column_writer   a file whose columns are encoded by several threads
    by_size                  the configurer `by-size`
    verify                   reads outputs again and compares them with the inputs
    throttle                 limits the bytes that an attempt moves to its grant
    memory_guard             limits the memory of tasks, explains a lack of memory
    attempt_folder           the attempt's own folder: progress, changed rows
    file_io                  inputs and outputs as files
    parquet_bytes/           Parquet below the level of rows: footers, pages, copying

The flow: (1) `attempt` makes a plan from the assignment and the footers. (2) `choose` selects
the cheapest correct way. (3) Tasks read, merge and write the outputs under their final
names. (4) `verify` reads the outputs again; only then is the result returned.
"""
