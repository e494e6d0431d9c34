"""The command `neve` with all its verbs, their groups in the help, and an example for each."""

import sys
from typing import Annotated

import typer

from neve.cli import (
    access,
    backlog,
    compactors,
    control,
    doctor,
    maintenance,
    recovery,
    requests,
    rows,
    serve,
    simulate,
    stack,
    tables,
    work,
)
from neve.release import __version__

EPILOG = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 conflict or refused, 4 service unavailable."

VERBS = (
    stack.register,
    serve.register,
    tables.register,
    rows.register,
    requests.register_compact,
    requests.register,
    work.register,
    backlog.register,
    maintenance.register,
    simulate.register,
    control.register,
    compactors.register,
    work.register_limits,
    recovery.register,
    access.register,
    stack.register_config,
    doctor.register,
)
"""Functions that register the verbs, in the order of the help."""
EXAMPLES = {
    "up": "neve up --compactors 2 --allow s3://lake",
    "down": "neve down",
    "serve": "neve serve --address ray://neve-head-svc:10001 --config neve.toml",
    "demo": "neve demo --keep",
    "logs": "neve logs gateway --follow",
    "table create": "neve table create users --location /data/users"
    " --schema id:int64,at:int64 --key id --version at",
    "table list": "neve table list",
    "table describe": "neve table describe users",
    "table tablets": "neve table tablets users",
    "table files": "neve table files users",
    "table set": "neve table set users ttl=30d codec_level=6",
    "table drop": "neve table drop users --yes",
    "table import": "neve table import s3://lake/users --name users --key id --dry-run",
    "table export": "neve table export users --to files.txt",
    "table split": "neve table split users --at 5000",
    "table merge": "neve table merge users --from 100 --to 900 --wait",
    "table operations": "neve table operations users",
    "pause": "neve pause users",
    "resume": "neve resume users",
    "add": "neve add users 2025/a.parquet 2025/b.parquet",
    "append": "neve append users rows.csv",
    "call": "neve call users 019513d5-6c00-7000-8000-000000000000",
    "scan": "neve scan users --columns id,name --start 100 --end 200",
    "compact": "neve compact users --delete-where \"status = 'test'\" --wait",
    "request list": "neve request list users",
    "request show": "neve request show users req-cc565346271b7be7 --wait",
    "request cancel": "neve request cancel users req-cc565346271b7be7",
    "job cancel": "neve job cancel att-9af9e225e9ccdbb05650",
    "status": "neve status",
    "jobs": "neve jobs",
    "queue": "neve queue --group default",
    "backlog": "neve backlog --files files.json --strategy leveled",
    "control": "neve control --watch",
    "explain": "neve explain users",
    "plan": "neve plan users",
    "history": "neve history users --count 5",
    "analyze": "neve analyze users --wait",
    "trigger": "neve trigger users",
    "ops": "neve ops users",
    "simulate": "neve simulate spec.toml --report report.html",
    "record": "neve record users --for 10m",
    "lift-quarantine": "neve lift-quarantine users",
    "lower-watermark": "neve lower-watermark users last",
    "compactor list": "neve compactor list",
    "compactor drain": "neve compactor drain default-1",
    "compactor stop": "neve compactor stop default-1 --wait 30s",
    "compactor scale": "neve compactor scale default 4",
    "group list": "neve group list",
    "group show": "neve group show default",
    "group pause": "neve group pause default",
    "group resume": "neve group resume default",
    "group limit": "neve group limit default 50MB",
    "limits": "neve limits",
    "volume limit": "neve volume limit default none",
    "fsck": "neve fsck users --repair",
    "gc": "neve gc users --delete",
    "rebuild": "neve rebuild s3://lake/users --name users --dry-run",
    "backup": "neve backup all --output backup.neve",
    "restore": "neve restore backup.neve --rename users=old_users",
    "token create": "neve token create ci --grant read --grant write:events-* --expires 90d",
    "token list": "neve token list",
    "token rotate": "neve token rotate ci --overlap 1d",
    "token revoke": "neve token revoke ci",
    "audit": "neve audit --table users --count 20",
    "redis-acl": "neve redis-acl store --user neve --password-file neve.password",
    "config check": "neve config check neve.toml",
    "config show": "neve config show --given",
    "doctor": "neve doctor --location s3://lake/users",
}
"""Examples, keyed by the verb's words. Each example can be typed as shown."""

PANELS = {
    "Run a service": ("up", "down", "serve", "demo", "logs", "config", "doctor"),
    "Tables and rows": ("table", "add", "append", "call", "scan"),
    "Compactions": ("compact", "request", "job", "pause", "resume"),
    "See what happens and why": (
        *("status", "jobs", "queue", "plan", "backlog", "control", "explain", "ops", "history"),
        *("simulate", "record"),
    ),
    "Control": (
        *("compactor", "group", "limits", "volume"),
        *("trigger", "analyze", "lift-quarantine", "lower-watermark"),
    ),
    "Rights": ("token", "audit", "redis-acl"),
    "Repair and keep": ("fsck", "gc", "rebuild", "backup", "restore"),
}
"""Help groups in display order, with the first word of each verb."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"neve {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """Build the command with every verb."""
    app = typer.Typer(
        name="neve",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Keep tables of Parquet files in shape.",
        epilog=EPILOG,
    )
    app.callback()(_options)
    for register in VERBS:
        register(app)
    _add_examples(app)
    _add_panels(app)
    return app


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the release.")
    ] = False,
) -> None:
    """Keep tables of Parquet files in shape."""


def _add_examples(app: typer.Typer, before: str = "") -> None:
    """Add an example to the help of every verb.

    Args:
        app: The command with its registered verbs.
        before: Words that precede the verb.
    """
    for command in app.registered_commands:
        command.epilog = f"Example: {EXAMPLES[f'{before}{command.name}']}"
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _add_examples(group.typer_instance, f"{before}{group.name} ")


def _add_panels(app: typer.Typer) -> None:
    """Assign the verbs to groups in the top-level help."""
    panel_of = {word: panel for panel, words in PANELS.items() for word in words}
    order = list(panel_of)
    for command in app.registered_commands:
        command.rich_help_panel = panel_of[str(command.name)]
    for group in app.registered_groups:
        group.rich_help_panel = panel_of[str(group.name)]
    app.registered_commands.sort(key=lambda each: order.index(str(each.name)))
    app.registered_groups.sort(key=lambda each: order.index(str(each.name)))


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    build()()
