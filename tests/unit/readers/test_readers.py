"""Readers die in the place of the service, of whatever a file does to them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.key_values import KeyType
from common.readers import pool
from common.readers.messages import (
    ReaderLimits,
    ReaderResult,
    pack_message,
    unpack_answer,
)
from common.readers.pool import TRIES_OF_OTHERS, ReaderDeathError, Readers
from tests.support import reader_work as work
from tests.support.patience import PATIENCE_S

MIB = 1024**2
FREEZES_MAX = 20
HARD = ReaderLimits(memory_bytes=128 * MIB, readers=2, kept=2, answer_bytes=MIB)


@contextmanager
def reading(limits: ReaderLimits = HARD) -> Iterator[list[str]]:
    """Have readers do what is marked; yield what they tell of deaths."""
    deaths: list[str] = []
    readers = Readers(limits, lambda _event, **fields: deaths.append(str(fields["how"])))
    pool.use_readers(readers)
    try:
        yield deaths
    finally:
        pool.use_readers(None)
        readers.close()


def until_gone(process: int) -> None:
    """Wait until a process is no more, or a zombie that nobody has buried."""
    until_s = time.monotonic() + PATIENCE_S
    stat = Path(f"/proc/{process}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        while ") Z " not in stat.read_text():
            assert time.monotonic() < until_s, f"process {process} still runs"
            time.sleep(0.01)


def new_mark(folder: Path, name: str = "mark") -> str:
    """Return a file at which work leaves numbers."""
    path = folder / name
    path.touch()
    work.mark(str(path), 0)
    return str(path)


def test_enumerations_are_told_by_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_in_python_3_11_2(self: KeyType, _protocol: int) -> object:
        return getattr, (type(self), self.name)

    monkeypatch.setattr(KeyType, "__reduce_ex__", as_in_python_3_11_2)

    assert unpack_answer(pack_message(ReaderResult(KeyType.INT))) == ReaderResult(KeyType.INT)


def test_times_of_a_zone_are_answered_as_the_same_instant() -> None:
    time = datetime(2025, 4, 1, 12, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    assert unpack_answer(pack_message(ReaderResult({"max": time}))) == ReaderResult({"max": time})


def test_marked_work_is_done_in_another_process_again_and_again() -> None:
    assert work.own_process("a") == ("a", os.getpid())

    with reading() as deaths:
        found = {work.own_process(str(number)) for number in range(20)}

    assert {path for path, _ in found} == {str(number) for number in range(20)}
    assert len({process for _, process in found}) == 1
    assert os.getpid() not in {process for _, process in found}
    assert deaths == []


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (lambda: work.abort("x"), r"^file x cannot be read: .* was ended by signal 6 \(SIGABRT\)"),
        (lambda: work.answer_with_code("x"), r"^file x cannot be read: .* not a plain value"),
        (lambda: work.answer_at_length("x", 2 * MIB), r"^file x cannot be read: the process"),
    ],
)
def test_a_file_that_kills_its_reader_is_blamed(deed: Callable[[], object], said: str) -> None:
    with reading() as deaths:
        work.own_process("before")
        with pytest.raises(ReaderDeathError, match=said):
            deed()

        assert deaths
        assert work.own_process("after")[0] == "after"


def test_a_read_that_takes_too_long_is_not_retried() -> None:
    with reading(ReaderLimits(wait_s=1.0)) as deaths:
        with pytest.raises(ReaderDeathError, match=r"^file x .* took longer than 1 s"):
            work.never_end("x")

        assert deaths == ["took longer than 1 s"]


@pytest.mark.parametrize(
    ("deed", "kind", "said"),
    [
        (lambda: work.take("x", 512 * MIB), RequestError, "^file x .* more than 128 MiB of memory"),
        (lambda: work.fail("x"), RequestError, "^file x cannot be read: UnicodeDecodeError"),
        (lambda: work.refuse("x"), RefusedError, "^not now$"),
    ],
)
def test_errors_of_the_work_end_no_reader(
    deed: Callable[[], object], kind: type[Exception], said: str
) -> None:
    with reading() as deaths:
        process = work.own_process("before")[1]
        with pytest.raises(kind, match=said):
            deed()

        assert work.own_process("after")[1] == process
        assert deaths == []


def test_a_reader_killed_once_is_retried(tmp_path: Path) -> None:
    with reading() as deaths:
        assert work.killed_often(new_mark(tmp_path), signal.SIGKILL, times=1) != os.getpid()

    assert deaths == ["was ended by signal 9 (SIGKILL)"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_file_is_blamed_for_what_others_end(number: signal.Signals, tmp_path: Path) -> None:
    """A system without memory, or a node that ends, kills one reader after the other."""
    with reading() as deaths:
        with pytest.raises(UnavailableError, match="not because of what it read"):
            work.end_by("x", number)

        assert len(deaths) == TRIES_OF_OTHERS
        assert work.killed_often(new_mark(tmp_path), number, times=3) != os.getpid()


def test_no_file_is_blamed_when_readers_die_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "data_bytes", work.abort_of_nothing)
    with reading(), pytest.raises(UnavailableError, match="a process that read nothing was ended"):
        work.abort("x")


def test_no_file_is_blamed_without_memory_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "available_bytes", lambda: 64 * MIB)
    with reading(), pytest.raises(UnavailableError, match=r"only 64.0 MiB of memory are free"):
        work.abort("x")


def test_a_file_is_blamed_by_what_it_does_to_a_reader_of_its_own() -> None:
    with reading() as deaths:
        used = work.own_process("before")[1]
        with pytest.raises(ReaderDeathError):
            work.abort("x")

        assert len(deaths) == 2
        assert work.own_process("after")[1] != used


def test_what_a_reader_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVE_GATEWAY_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    (tmp_path / "there").write_text("text")
    with reading(), socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        found = work.rights(f"{tmp_path}", port)
        with_network = work.rights(f"s3://bucket{tmp_path}", port)

    assert found.pop("reads") == "text"
    assert found.pop("environment") == []
    assert found.pop("core") == 0
    assert found.pop("descriptors") <= 256
    names = with_network.pop("environment")
    assert "AWS_SECRET_ACCESS_KEY" in names
    assert not [name for name in names if name.startswith("NEVE")]
    for each in (found, with_network):
        assert each.pop("writes") != "done"
    if Path("/proc/self/status").exists():
        assert found.pop("new_privileges") == with_network.pop("new_privileges") == "1"
    if os.geteuid() == 0:
        assert found.pop("connects") != "done", "root may always leave the network"
    assert with_network.pop("connects") == "done", "clients of object stores need it"
    if has_landlock():
        assert found.pop("runs") == found.pop("deletes") == "PermissionError"


def has_landlock() -> bool:
    """Return whether the kernel knows it; asked for its version, it makes nothing."""
    return bool(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0)


def test_a_death_disturbs_nobody_else(tmp_path: Path) -> None:
    with reading() as deaths, ThreadPoolExecutor(2) as threads:
        other = threads.submit(work.sleep, new_mark(tmp_path), 0.5)
        with pytest.raises(ReaderDeathError):
            work.abort("x")

        assert other.result(20) != os.getpid()
        assert len(deaths) == 2


def test_a_frozen_reader_is_given_up() -> None:
    # It cannot notice its own time: whoever waits for it does.
    limits, frozen = ReaderLimits(wait_s=2.0, patience_s=0.5), "stopped responding"
    with reading(limits) as deaths:
        for _ in range(FREEZES_MAX):
            with pytest.raises((ReaderDeathError, UnavailableError)):
                work.stop_for_ever("x")
            # On a busy machine its time may be over before it has stopped itself.
            if deaths[-1] == frozen:
                break

        assert deaths[-1] == frozen
        assert work.own_process("after")[0] == "after"


def test_no_more_readers_than_allowed_work_at_a_time(tmp_path: Path) -> None:
    with reading() as _, ThreadPoolExecutor(6) as threads:
        processes = {
            *threads.map(lambda at: work.sleep(new_mark(tmp_path, f"{at}"), 0.1), range(6))
        }

        assert 1 <= len(processes) <= 2


def test_readers_that_hang_let_others_work(tmp_path: Path) -> None:
    begun, release = new_mark(tmp_path), tmp_path / "release"
    with reading(ReaderLimits(readers=1, patience_s=0.1)), ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(work.wait_for, begun, str(release))
        until_s = time.monotonic() + PATIENCE_S
        while not work.marked(begun):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert work.own_process("other")[0] == "other"
        release.touch()
        assert hanging.result(PATIENCE_S) == "released"


def test_readers_are_replaced_after_much_work() -> None:
    with reading(ReaderLimits(works=3)):
        assert len({work.own_process("x")[1] for _ in range(9)}) >= 3


def test_a_dead_nursery_is_replaced(tmp_path: Path) -> None:
    with reading():
        reader = work.own_process("before")[1]
        nursery = int(Path(f"/proc/{reader}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(nursery, signal.SIGKILL)
        until_gone(reader)

        assert work.own_process("after")[1] != reader


def test_readers_end_with_the_process_that_has_them(tmp_path: Path) -> None:
    """Also while they are busy; here it ends without a word."""
    mark = new_mark(tmp_path)
    service = os.fork()
    if service == 0:
        with suppress(BaseException):
            pool.use_readers(Readers(ReaderLimits(), lambda *_, **__: None))
            ThreadPoolExecutor(1).submit(work.sleep, mark, 600.0)
            while not work.marked(mark):
                time.sleep(0.01)
        os._exit(0)
    os.waitpid(service, 0)

    until_gone(work.marked(mark))
