"""The Spark engine: a driver process under the compactor, its executors on RayDP.

    compactor actor ── socket pair, frames ── driver process ── py4j ── Spark ── executors
       engine                                   child

    engine            what the service uses: starts driver processes, runs attempts in them
    driver_process    one driver process, as its parent sees it
    driver_protocol   settings, orders and notices between the two
    child             the driver process: `python -m compactor.spark.child`
    attempt_threads   attempts inside the driver process: one thread, pool and job group each
    application       opens the Spark session, on RayDP or in the process itself
    cluster           a Spark application on Ray that speaks to its own parts only
    task_daemon       Spark's daemon for Python workers
    startup           how driver process and Python workers are set up

The driver is a process of its own because RayDP allows one application per Ray namespace and
Spark one per process, and so that its death harms nothing else.

The flow: (1) `engine` starts `child` and sends its settings. (2) `child` opens the
`application`. (3) `engine` orders an attempt, and `attempt_threads` calls
`compactor.rewrite.attempt`. (4) Progress and the result come back as notices.
"""
