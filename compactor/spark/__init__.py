"""The Spark engine: a driver process under the compactor, its executors on RayDP.

    compactor actor ── socket pair, frames ── driver process ── py4j ── JVM ── executors
       engine                                   child                   Spark, app master

    engine            used by the service: starts driver processes, runs attempts in them
    driver_protocol   settings, orders and notices between the two
    child             the driver process: `python -m compactor.spark.child`, a thread per attempt
    application       starts the JVM, opens the Spark session, on RayDP or in the JVM itself
    cluster           a Spark application on Ray that accepts only its own parts
    class_archive     class path of the JVMs, and the archive from which they load classes
    task_daemon       Spark's daemon for Python workers

The driver is a separate process because RayDP allows one application per Ray namespace and Spark
one per process, and so that its death harms nothing else.

The flow: (1) `engine` starts `child` and sends its settings. (2) `child` opens the
`application`. (3) `engine` orders an attempt, and `child` calls
`compactor.rewrite.attempt`. (4) Progress and the result come back as notices.
"""
