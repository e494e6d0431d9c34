"""The driver process: `python -m compactor.spark.child FD PARENT`.

It lives exactly as long as its parent and its JVM. The kernel kills it when the parent dies
(Linux), and elsewhere the closed pipe ends it. Its JVM ends with it, because Spark binds the JVM
to the driver's pipe. Ray ends app master and executors when the driver is gone.

No failure is silent. The end of the JVM or of the Spark application, or an error in any thread,
ends the process, and the parent starts another one. A frozen process sends no life signs, which
the parent notices.
"""

import os
import signal
import socket
import sys
import threading
from functools import partial
from typing import Any, NoReturn

from common.clock import SystemClock
from compactor.spark import driver_protocol
from compactor.spark.application import open_session
from compactor.spark.attempt_threads import (
    AttemptThreads,
    end_process,
    load_work,
)
from compactor.spark.driver_protocol import DriverSettings
from compactor.spark.startup import die_with_parent, shorten_thread_switches

SIGN_INTERVAL_S = 2.0
"""Interval of the life signs, which show the parent that the JVM answers."""
NO_EXECUTOR_SIGNS_MAX = 30
"""Life signs without an executor after which none is expected: its starter has died."""


class Driver:
    """Owns the pipe: one thread reads orders, any thread may send notices."""

    def __init__(self, link: socket.socket) -> None:
        """Create a driver on the pipe."""
        self._link = link
        self._sending = threading.Lock()
        self._worker: AttemptThreads | None = None
        self._stopping = threading.Event()

    def serve(self) -> None:
        """Open the session, then follow orders until the order to stop."""
        settings = driver_protocol.receive(self._link)
        assert isinstance(settings, DriverSettings), type(settings)
        threading.Thread(target=self._read_orders, daemon=True, name="orders").start()
        clock = SystemClock()
        begun_s = clock.now_s()
        try:
            # A unique namespace, because the app master of a dead driver may still hold its name.
            work = load_work(settings.work)
            session = open_session(settings, f"{settings.name}-{os.getpid()}")
        except Exception as error:
            # A process boundary: the parent needs the error, whatever it is, before the process
            # ends.
            self.send(driver_protocol.NotStarted(_first_line_of_error(error)))
            raise
        self._worker = AttemptThreads(session.spark, work, self.send)
        jvm = session.jvm
        took_s = clock.now_s() - begun_s
        self.send(
            driver_protocol.Started(session.spark.sparkContext.applicationId, took_s, jvm.pid)
        )
        follow_jvm = partial(self._follow_jvm, jvm)
        threading.Thread(target=follow_jvm, daemon=True, name="JVM").start()
        threading.Thread(target=self._give_signs, daemon=True, name="signs").start()
        self._stopping.wait()
        session.close()

    def send(self, notice: driver_protocol.Notice) -> None:
        """Send a notice to the parent; end the process if the parent is gone."""
        data = driver_protocol.frame(notice)
        with self._sending:
            try:
                self._link.sendall(data)
            except OSError:
                _exit_now()

    def failed(self, error: threading.ExceptHookArgs) -> None:
        """End the process because a thread has failed and others may wait for it for ever."""
        if not self._stopping.is_set():
            threading.__excepthook__(error)
            name = error.thread.name if error.thread else "unknown"
            end_process("a thread has failed", thread=name)

    def _follow_jvm(self, jvm: Any) -> None:
        """End with the JVM, because calls to a dead JVM wait in vain."""
        os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)
        if not self._stopping.is_set():
            end_process("the JVM has ended", pid=jvm.pid)

    def _give_signs(self) -> None:
        """Send life signs: the JVM answers, and which attempts it runs."""
        assert self._worker is not None
        alone = 0
        while not self._stopping.wait(SIGN_INTERVAL_S):
            if self._worker.broken():
                end_process("the Spark application has ended")
            alone = 0 if self._worker.has_executor() else alone + 1
            if alone >= NO_EXECUTOR_SIGNS_MAX:
                end_process("no executor has come back", waited_s=alone * SIGN_INTERVAL_S)
            self.send(driver_protocol.LifeSign(self._worker.busy()))

    def _read_orders(self) -> None:
        """Follow the parent's orders; this thread notices the parent's end."""
        while True:
            try:
                order = driver_protocol.receive(self._link)
            except EOFError:
                _exit_now()
            self._follow(order)

    def _follow(self, order: driver_protocol.Order) -> None:
        """Execute one order."""
        match order:
            case driver_protocol.Run(attempt, payload):
                assert self._worker is not None, "an order to run before Spark is up"
                self._worker.run(attempt, payload)
            case driver_protocol.Cancel(attempt):
                if self._worker is not None:
                    self._worker.cancel(attempt)
            case driver_protocol.Grant(attempt, bytes_s):
                if self._worker is not None:
                    self._worker.grant(attempt, bytes_s)
            case driver_protocol.Stop():
                self._stopping.set()


def _exit_now() -> NoReturn:
    """End now: the parent is gone, so no work is needed any more."""
    os._exit(1)


def _first_line_of_error(error: BaseException) -> str:
    """Return the class and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no text'}"


def main() -> None:
    """Run the driver on the inherited end of the pipe."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    shorten_thread_switches()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = Driver(socket.socket(fileno=descriptor))
    threading.excepthook = driver.failed
    driver.serve()


if __name__ == "__main__":
    main()
