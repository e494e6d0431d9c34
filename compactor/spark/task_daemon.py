"""Spark's daemon for Python workers, with workers that die with it.

Spark's own daemon tells its workers when it ends in order. When an executor is killed,
Ray kills the daemon too, which then tells nobody: a worker in the middle of a long task
would go on reading and writing files for an attempt that has long been given up.
"""

import os

from pyspark.daemon import manager

from compactor.spark.lifeline import die_with


def main() -> None:
    """Run the daemon; each of its forks is a worker."""
    daemon = os.getpid()

    def bind() -> None:
        # A worker's own children are left to it.
        if os.getppid() == daemon:
            die_with(daemon)

    os.register_at_fork(after_in_child=bind)
    manager()


if __name__ == "__main__":
    main()
