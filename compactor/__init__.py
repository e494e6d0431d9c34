"""Runs jobs: takes them from the coordinator, rewrites their files with Spark, and commits.

    core       decisions about one attempt, and the interface of its engine
    service    the shell: takes jobs, runs attempts, commits, reports
    spark      the engine: a driver process, its Spark application and Python workers
    rewrite    the rewrite itself: inputs in, verified outputs out
    lake_commit  outputs of lake tables, published in the table's own log
    actor      the Ray actor: options, wiring, metrics

The flow: (1) `service` takes an assignment from the coordinator. (2) `spark` sends it to the
driver process. (3) `rewrite` writes and verifies the outputs. (4) `service` commits them to
the store and reports.
"""
