"""The driver process: `python -m compactor.spark.child FD PARENT`.

It lives exactly as long as its parent and its JVM. The kernel kills it when the parent dies
(Linux), and elsewhere the closed pipe ends it. Its JVM ends with it, because Spark binds the JVM
to the driver's pipe. The app master is in that JVM, and Ray ends executors when it is gone.

No failure is silent. The end of the JVM or of the Spark application, or an error in any thread,
ends the process, and the parent starts another one. A frozen process sends no life signs, which
the parent notices.
"""

import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from common import errors
from common.parquet.location import storage_error
from common.runtime import SystemClock, die_with_parent, shorten_thread_switches
from common.telemetry import event_log
from compactor.core import RewriteProgress
from compactor.rewrite.spark_tasks import SHARED_TASKS, warm_up_expressions
from compactor.spark import driver_protocol
from compactor.spark.application import open_session
from compactor.spark.class_archive import make_in_background
from compactor.spark.driver_protocol import (
    Done,
    DriverSettings,
    Failed,
    Notice,
    Progressed,
)

# ---------------------------------------------------------------------------------- Attempt threads
# Runs attempts in the driver process: concurrent ones in separate threads and pools, and each with
# its own job group. Threads stay, because a new one costs a connection and a thread of the JVM.


PROGRESS_INTERVAL_S = 0.2
CANCEL_INTERVAL_S = 0.5
CAUSE_CHARACTERS_MAX = 4000


class Throttle(Protocol):
    """Control over the bytes that an attempt moves, as used by orders of the parent."""

    def grant(self, bytes_s: float | None) -> None:
        """Apply another limit; None: no limit."""
        ...

    def stop(self) -> None:
        """End all waits for the limit."""
        ...


Work = Callable[
    [
        Any,
        Any,
        Callable[[RewriteProgress], None],
        Callable[[], bool],
        Callable[[Throttle], None],
    ],
    Any,
]
"""Spark session, payload, progress, cancelled, receiver of the throttle → result."""


class AttemptThreads:
    """The running attempts and the threads in use."""

    def __init__(self, spark: Any, work: Work, send: Callable[[Notice], None]) -> None:
        """Create an empty set.

        Args:
            spark: The session.
            work: The function that runs an attempt.
            send: Sends a notice to the parent.
        """
        self._spark = spark
        self._work = work
        self._send = send
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._cancelled: dict[str, threading.Event] = {}
        self._granted: dict[str, float | None] = {}
        self._throttles: dict[str, Throttle] = {}
        self._busy: set[int] = set()
        """Numbers of the threads in use."""
        self._threads: list[SimpleQueue[tuple[str, Any]]] = []
        """Attempts for each thread, by its number."""
        self._never = threading.Event()

    def run(self, attempt: str, payload: Any) -> None:
        """Start an attempt in a free thread."""
        with self._lock:
            assert attempt not in self._cancelled, f"attempt {attempt} runs already"
            self._cancelled[attempt] = threading.Event()
            number = next(n for n in range(len(self._busy) + 1) if n not in self._busy)
            self._busy.add(number)
            if number == len(self._threads):
                self._threads.append(SimpleQueue())
                run_attempts = partial(self._run_attempts, number, self._threads[number])
                threading.Thread(target=run_attempts, daemon=True).start()
        self._threads[number].put((attempt, payload))

    def cancel(self, attempt: str) -> None:
        """End an attempt soon; one that is over is ignored."""
        event = self._cancelled.get(attempt)
        if event is not None and not event.is_set():
            event.set()
            with self._lock:
                if (throttle := self._throttles.get(attempt)) is not None:
                    throttle.stop()
            threading.Thread(target=self._cancel_jobs, args=(attempt,), daemon=True).start()

    def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Set an attempt's limit in bytes/s; one that is over is ignored."""
        with self._lock:
            if attempt in self._cancelled:
                self._granted[attempt] = bytes_s
                if (throttle := self._throttles.get(attempt)) is not None:
                    throttle.grant(bytes_s)

    def broken(self) -> bool:
        """Return whether the Spark application has ended."""
        try:
            context = self._spark.sparkContext._jsc  # noqa: SLF001 - PySpark has no public API
            return context is None or bool(context.sc().isStopped())
        except Exception:  # any error means that the JVM is gone
            return True

    def has_executor(self) -> bool:
        """Return whether a process exists in which tasks can run."""
        context = self._spark.sparkContext
        if context.master.startswith("local"):
            return True  # The driver itself.
        processes = context._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - PySpark has no public API
        return int(processes.size()) > 1  # The driver is included.

    def idle(self) -> bool:
        """Return whether no attempt runs."""
        return not self._cancelled

    def busy(self) -> frozenset[str]:
        """Return the attempts whose tasks Spark runs now; the others wait, or need no tasks."""
        with self._lock:
            attempts = list(self._cancelled)
        if not attempts:
            return frozenset()
        tracker = self._spark.sparkContext.statusTracker()
        active = set(tracker.getActiveJobsIds())
        shared = SHARED_TASKS.running
        return frozenset(
            attempt
            for attempt in attempts
            if attempt in shared or _has_running_task(tracker, attempt, active)
        )

    def _attach(self, attempt: str, throttle: Throttle) -> None:
        """Register an attempt's throttle, and apply earlier orders to it."""
        with self._lock:
            self._throttles[attempt] = throttle
            if attempt in self._granted:
                throttle.grant(self._granted[attempt])
            if self._cancelled[attempt].is_set():
                throttle.stop()

    def _cancel_jobs(self, attempt: str) -> None:
        """Cancel the attempt's Spark jobs, including those that it starts before it checks."""
        while attempt in self._cancelled:
            self._spark.sparkContext.cancelJobGroup(attempt)
            self._never.wait(CANCEL_INTERVAL_S)

    def _run_attempts(self, number: int, attempts: "SimpleQueue[tuple[str, Any]]") -> None:
        """Run attempts one after the other; the body of a thread."""
        # The thread has a counterpart in the JVM, where Spark stores group and pool.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"slot-{number}")
        while True:
            self._attempt(number, *attempts.get())

    def _attempt(self, number: int, attempt: str, payload: Any) -> None:
        """Run the work and report its outcome."""
        self._spark.sparkContext.setJobGroup(attempt, attempt, interruptOnCancel=True)
        notice = self._end_of(attempt, payload)
        with self._lock:
            self._busy.discard(number)
            del self._cancelled[attempt]
            self._granted.pop(attempt, None)
            self._throttles.pop(attempt, None)
        self._notify(attempt, notice)

    def _end_of(self, attempt: str, payload: Any) -> Notice:
        """Run the work and return its outcome."""
        event = self._cancelled[attempt]
        report = self._reporter(attempt)
        try:
            attach = partial(self._attach, attempt)
            result = self._work(self._spark, payload, report, event.is_set, attach)
        except BaseException as error:  # a boundary: the error ends the attempt and is reported
            if not event.is_set() and self.broken():
                # Every attempt is lost with the application; the closed pipe shows it.
                end_process("the Spark application has ended", attempt=attempt, cause=str(error))
            return _failure(attempt, error, cancelled=event.is_set())
        if event.is_set():
            return Failed(attempt, "AttemptCancelledError", f"attempt {attempt} was cancelled")
        return Done(attempt, result)

    def _notify(self, attempt: str, notice: Notice) -> None:
        """Send the outcome of an attempt; a result that cannot be sent is a failure."""
        try:
            self._send(notice)
        except Exception as error:  # pickling runs code of the result's classes
            self._send(_failure(attempt, error, cancelled=False))

    def _reporter(self, attempt: str) -> Callable[[RewriteProgress], None]:
        """Return a function that sends progress, at a limited rate."""
        sent_s = [0.0]

        def report(progress: RewriteProgress) -> None:
            now_s = self._clock.now_s()
            if now_s - sent_s[0] >= PROGRESS_INTERVAL_S or progress.fraction >= 1.0:
                sent_s[0] = now_s
                self._send(Progressed(attempt, progress))

        return report


def end_process(event: str, **fields: object) -> NoReturn:
    """End the driver at once, whatever its threads do; the parent starts another one.

    Args:
        event: Cause, for the log.
        fields: Further fields of the log entry.
    """
    event_log("spark driver")(event, **fields)
    os._exit(1)


def _has_running_task(tracker: Any, group: str, active: Collection[int]) -> bool:
    """Return whether any task of a group's active jobs is running.

    Args:
        tracker: Spark's status tracker.
        group: A job group.
        active: Ids of all active jobs.
    """
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group) if job in active]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return any(stage.numActiveTasks for stage in stages if stage)


def load_work(work: str) -> Work:
    """Return the function with the name `module:function`."""
    module, _, function = work.partition(":")
    work_function: Work = getattr(importlib.import_module(module), function)
    return work_function


def _failure(attempt: str, error: BaseException, *, cancelled: bool) -> Failed:
    """Return an error in the form that the parent raises."""
    if cancelled:
        return Failed(attempt, "AttemptCancelledError", f"attempt {attempt} was cancelled")
    if isinstance(error, errors.CompactionError):
        return Failed(attempt, errors.error_name(error), str(error)[:CAUSE_CHARACTERS_MAX])
    failure: errors.CompactionError = errors.RewriteError(f"{type(error).__name__}: {error}")
    if isinstance(error, Exception):
        failure = storage_error(errors.RewriteError, str(failure), error)
    return Failed(attempt, errors.error_name(failure), str(failure)[:CAUSE_CHARACTERS_MAX])


# -------------------------------------------------------------------------------------------- Child


SIGN_INTERVAL_S = 2.0
"""Interval of the life signs, which show the parent that the JVM answers."""
WARM_UP_DELAY_S = 2.0
"""Interval of the checks, from the start, whether the driver has time for warming up."""
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
            # A unique namespace, because executors of a dead driver may still hold their names.
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
        make_in_background()
        follow_jvm = partial(self._follow_jvm, jvm)
        threading.Thread(target=follow_jvm, daemon=True, name="JVM").start()
        threading.Thread(target=self._give_signs, daemon=True, name="signs").start()
        warm_up = partial(self._warm_up, session.spark)
        threading.Thread(target=warm_up, daemon=True, name="warm-up").start()
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
        signs_alone = 0
        while not self._stopping.wait(SIGN_INTERVAL_S):
            if self._worker.broken():
                end_process("the Spark application has ended")
            signs_alone = 0 if self._worker.has_executor() else signs_alone + 1
            if signs_alone >= NO_EXECUTOR_SIGNS_MAX:
                end_process("no executor has come back", waited_s=signs_alone * SIGN_INTERVAL_S)
            self.send(driver_protocol.LifeSign(self._worker.busy()))

    def _warm_up(self, spark: Any) -> None:
        """Evaluate expressions once no attempt runs."""
        assert self._worker is not None
        log, is_idle = event_log("spark driver"), False
        while not is_idle:
            if self._stopping.wait(WARM_UP_DELAY_S):
                return
            is_idle = self._worker.idle()
        try:
            warm_up_expressions(spark)
        except Exception as error:  # jobs report their own errors, and most need no Spark SQL
            if not self._stopping.is_set():
                log("not warmed up", cause=_first_line_of_error(error))

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
