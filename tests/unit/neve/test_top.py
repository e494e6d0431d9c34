"""`neve top`: frames as values, and the verb in a terminal against a real gateway."""

from __future__ import annotations

import os
import pty
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from neve import api
from neve.cli.session import TerminalConsole
from neve.cli.top import Board, Reading, TopView, headline, plot, read_service
from neve.client.errors import ForbiddenError
from tests.support.gateway import COMPACTOR, GROUP, TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S
from tests.support.shell import Shell

WIDTH, HEIGHT = 80, 24
LONG = "a-table-with-a-name-of-more-than-eighty-characters-" + "x" * 60
STATUS = api.Status(
    coordinator="coord-1",
    started_s=0.0,
    now_s=60.0,
    groups=(GROUP,),
    compactors=(COMPACTOR,),
    tables=3,
    tablets_known=30,
    committed=7,
    failed=2,
    released=0,
    conflicts=0,
    quarantined=0,
)
CALM = replace(STATUS, groups=(replace(GROUP, queued=0, running=0),))
CONTROL = api.Control(
    controller="shares",
    now_s=60.0,
    decided_at_s=None,
    period_s=1.0,
    classes=(),
    bytes_s=None,
    slots=None,
    reasons=(),
    table_weights={},
    backlog_bytes=3 * 1024**3,
    memory_bytes=0,
    arrival_bytes_s=1024.0,
    rewrite_bytes_s=2048.0,
    slot_bytes_s=None,
    living_slots=4,
    busy_slots=1,
    slots_max=4,
    latencies_s={},
    latency_limit_s=None,
)


def backlog(table: str, size_bytes: int) -> api.Backlog:
    return api.Backlog(table=table, strategy="ratio", size_bytes=size_bytes, tablets=2)


def job(attempt: str, *, moved_bytes: int = 0, fraction: float = 0.25) -> api.Job:
    return api.Job(
        id=f"job-{attempt}",
        attempt=attempt,
        table=LONG,
        tablet="t1",
        kind="SYSTEM",
        group="default",
        compactor="local-1",
        inputs=3,
        input_bytes=2**30,
        since_s=30.0,
        state="rewriting",
        fraction=fraction,
        moved_bytes=moved_bytes,
    )


def queued(number: int) -> api.PlannedJob:
    return api.PlannedJob(
        tablet="t1",
        files=("a", "b"),
        input_bytes=number,
        group="default",
        priority=number,
        kind="SYSTEM",
        reason="",
        table=LONG,
        place=number,
    )


def full_reading(at_s: float, moved_bytes: int = 0) -> Reading:
    return Reading(
        at_s=at_s,
        status=STATUS,
        control=CONTROL,
        backlog=tuple(backlog(f"{LONG}{number}", number) for number in range(100)),
        activity=(api.TableActivity(table="busy", queued=4, oldest_s=7_000.0, running=1),),
        queue=tuple(queued(number) for number in range(1, 101)),
        jobs=tuple(job(f"att-{number}", moved_bytes=moved_bytes) for number in range(40)),
    )


def board_of(*readings: Reading, view: TopView = TopView.OVERVIEW, plain: bool = False) -> Board:
    board = Board(lambda _table, tablet: tablet, view=view, plain=plain)
    for reading in readings:
        board.add(reading)
    return board


def frame(board: Board, width: int = WIDTH, height: int = HEIGHT, now_s: float = 60.0) -> list[str]:
    console = TerminalConsole(highlight=False, width=width)
    with console.capture() as capture:
        console.print(board.frame(width, height, now_s))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("view", TopView)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (80, 8)])
def test_a_frame_fits_the_terminal(view: TopView, width: int, height: int) -> None:
    lines = frame(board_of(full_reading(60.0), view=view), width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert f"[{list(TopView).index(view) + 1} {view}]" in lines[-1]


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (TopView.TABLES, ["BACKLOG*", "TABLE", "a-table-with", "… "]),
        (TopView.QUEUE, ["PLACE*", "a-table-w", "more"]),
        (TopView.RUNNING, ["SINCE*", "a-tab", "25%", "30.0 s", "1 m 30 s", "1.0 GiB"]),
    ],
)
def test_a_listing_in_80_columns_keeps_every_column(view: TopView, wanted: list[str]) -> None:
    text = "\n".join(frame(board_of(full_reading(60.0), view=view)))

    for word in wanted:
        assert word in text


def test_tables_are_sorted_by_the_column_that_keys_choose() -> None:
    reading = replace(
        full_reading(60.0),
        backlog=(backlog("small", 10), backlog("large", 10**9)),
        activity=(api.TableActivity(table="active", queued=4),),
    )
    board = board_of(reading, view=TopView.TABLES)

    def names() -> list[str]:
        return [
            name
            for line in frame(board)
            for name in line.split()
            if name in {"small", "large", "active"}
        ]

    assert names() == ["large", "small", "active"]
    board.press("r")
    assert names() == ["active", "small", "large"]
    board.press("r")
    board.press("s")
    assert names() == ["active", "large", "small"], "by name"
    for _ in range(2):
        board.press("s")
    assert names()[0] == "active", "by queued jobs"


def test_keys_change_the_view_and_end_the_display() -> None:
    board = board_of()

    assert [(board.press(key), board.view) for key in "23\t\t"] == [
        (False, TopView.TABLES),
        (False, TopView.QUEUE),
        (False, TopView.RUNNING),
        (False, TopView.OVERVIEW),
    ]
    assert not board.press("9")
    assert board.press("q")


def test_a_running_job_has_a_rate_from_the_second_sample_on() -> None:
    first, second = full_reading(60.0, 0), full_reading(62.0, 4 * 1024**2)

    assert "MiB" not in "\n".join(frame(board_of(first, view=TopView.RUNNING)))
    assert "2.0 MiB" in "\n".join(frame(board_of(first, second, view=TopView.RUNNING)))


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        (Reading(at_s=0, status=CALM), "all 3 tables are at rest"),
        (Reading(at_s=0, status=replace(CALM, tables=1)), "the table is at rest"),
        (Reading(at_s=0, status=replace(CALM, tables=0)), "there is no table"),
        (
            Reading(at_s=0, status=CALM, backlog=(backlog("a", 1),)),
            "1 table has work: 0 jobs queued, 0 running",
        ),
        (
            Reading(at_s=0, status=replace(CALM, warnings=("no compactor serves group x",))),
            "1 thing needs you",
        ),
        (
            Reading(
                at_s=0,
                status=replace(
                    CALM,
                    quarantined=3,
                    quarantines=(api.Quarantine(table="a", tablet="t", reason="torn"),),
                    store_warnings=("little memory",),
                ),
            ),
            "3 things need you",
        ),
        (Reading(at_s=0, status=replace(CALM, tables_unscanned=2)), "first scan has 2 tables left"),
        (Reading(at_s=0), "this token may not see the status"),
    ],
)
def test_one_sentence_says_how_the_service_is(reading: Reading, sentence: str) -> None:
    assert sentence in headline(reading)


def test_what_needs_an_operator_comes_with_the_command_that_helps() -> None:
    quarantine = api.Quarantine(table="orders", tablet="t9", reason="a page is damaged")
    status = replace(CALM, quarantined=1, quarantines=(quarantine,))
    text = "\n".join(frame(board_of(Reading(at_s=60.0, status=status)), width=200))

    assert "a page is damaged; `neve lift-quarantine orders t9`" in text


def test_a_silent_service_leaves_the_last_figures_with_their_age() -> None:
    board = board_of(full_reading(60.0))
    board.silence = "the service does not answer"
    lines = frame(board, now_s=90.0)

    assert lines[1] == "no answer, figures are 30.0 s old: the service does not answer"
    assert "backlog 3.0 GiB" in lines[2]


def test_text_from_users_cannot_control_the_terminal() -> None:
    evil = replace(job("att-1"), table="\x1b[2Jevil", state="\x1b]0;title\x07")
    reading = Reading(at_s=60.0, status=CALM, jobs=(evil,))
    lines = frame(board_of(reading, view=TopView.RUNNING), width=160)

    assert "\x1b" not in "\n".join(lines)
    assert r"\x1b[2Jevil" in "\n".join(lines)


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 8, ""),
        ([0, 0], 8, "  "),
        ([0, 1, 8_000], 8, " ▁█"),
        ([1, 8, 1, 1], 2, "█▁"),
        ([8, None, 0, 8], 8, "█┄ █"),
        ([None, None], 8, "┄┄"),
        ([None, 8, None, None], 2, "█┄"),
    ],
)
def test_a_plot_shows_the_largest_value_of_each_span(
    values: list[float | None], width: int, bars: str
) -> None:
    assert plot(values, width, plain=False) == bars


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = "\n".join(
        frame(board_of(full_reading(60.0), view=TopView.RUNNING, plain=True), height=12)
    )

    assert "##....  25%" in text


# ----------------------------------------------------------------------------------- On a gateway


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def neve(gateway: Gateway, tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)


def test_once_prints_one_frame_of_the_service(neve: Shell) -> None:
    neve.environ |= {"COLUMNS": "80", "LINES": "24"}
    overview = neve.run("top", "--once").output

    assert "group default: " in overview
    assert "[1 overview]" in overview
    assert overview.splitlines()[2].strip("┄") == "█", "the end of the hour"
    assert "PLACE*" in neve.run("top", "--once", "--view", "queue").output
    assert max(map(len, overview.splitlines())) <= 80


def test_json_has_one_sample(neve: Shell) -> None:
    reading = neve.json("top")

    assert reading["status"]["coordinator"] == "coord-1"
    assert {"backlog", "activity", "queue", "jobs", "control"} <= set(reading)
    assert reading["series"]["total"]["values"]["backlog_bytes"][-3:] == [1090.0, None, 1045.0]


def test_without_a_terminal_it_names_what_to_give(neve: Shell) -> None:
    neve.run("top", code=2, says="needs a terminal; give --once or --json")


def test_a_service_that_does_not_answer_is_an_error_at_the_start(tmp_path: Path) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL="http://127.0.0.1:9", NEVE_TOKEN=TOKEN)

    neve.run("top", "--once", code=4, says="127.0.0.1:9")


def test_a_caller_with_few_rights_sees_no_more_than_by_the_api(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    with serving(access={"tokens_file": str(tokens)}) as served:
        owner = Shell(tmp_path / "home", NEVE_ACCESS_TOKENS_FILE=str(tokens))
        token = owner.run("token", "create", "one", "--grant", "write:other-*").stdout.strip()
        with served.client(token) as client:
            reading = read_service(client, 60.0)
            calls = {
                "status": client.status,
                "control": client.control,
                "backlog": client.backlog,
                "activity": client.activity,
                "queue": client.queue,
                "jobs": client.jobs,
                "series": client.series,
            }
            for name, call in calls.items():
                if getattr(reading, name) is None:
                    with pytest.raises(ForbiddenError):
                        call()
        caller = Shell(tmp_path / "home", NEVE_URL=served.url, NEVE_TOKEN=token)
        for view in TopView:
            assert "events" not in caller.run("top", "--once", "--view", view.value).output


class Screen:
    """`neve top` in a terminal of its own."""

    def __init__(self, gateway: Gateway, home: Path) -> None:
        self.process, self.terminal = pty.fork()
        if not self.process:
            environ = {**os.environ, "NEVE_URL": gateway.url, "NEVE_TOKEN": TOKEN}
            environ |= {"NEVE_HOME": str(home), "TERM": "xterm", "PYTHONUTF8": "1"}
            program = "from neve.cli.app import main; main()"
            os.execve(sys.executable, [sys.executable, "-c", program, "top"], environ)
        termios.tcsetwinsize(self.terminal, (HEIGHT, WIDTH))
        self.shown = ""

    def wait(self, text: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < until, self.shown[-2000:]
            try:
                self.shown += os.read(self.terminal, 65_536).decode("utf-8", "replace")
            except OSError as error:  # The process has ended.
                raise AssertionError(self.shown[-2000:]) from error

    def press(self, key: str) -> None:
        self.shown = ""
        os.write(self.terminal, key.encode())

    def exit_code(self) -> int:
        while True:
            try:
                if not os.read(self.terminal, 65_536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.fixture
def screen(gateway: Gateway, tmp_path: Path) -> Screen:
    return Screen(gateway, tmp_path / "home")


def test_a_terminal_shows_the_views_that_keys_choose(screen: Screen) -> None:
    screen.wait("[1 overview]")
    screen.press("3")
    screen.wait("PLACE*")
    screen.press("s")
    screen.wait("TABLE*")
    screen.press("4")
    screen.wait("SINCE*")
    screen.press("q")

    assert screen.exit_code() == 0


def test_ctrl_c_ends_it_and_restores_the_terminal(screen: Screen) -> None:
    before = termios.tcgetattr(screen.terminal)[3] & termios.ECHO
    screen.wait("[1 overview]")
    os.write(screen.terminal, b"\x03")
    code = screen.exit_code()

    assert code in (0, 130)
    assert before
