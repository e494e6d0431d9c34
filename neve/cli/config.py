"""`neve config check`: are the settings of a service as it would read them?"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from common.config import load_settings, setting_rows
from common.settings import Settings
from neve.cli import render
from neve.cli.session import Session, verb

HIDDEN = "(set, not shown)"


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    config = typer.Typer(no_args_is_help=True, help="The settings of a service.")
    app.add_typer(config, name="config")
    verb(config, "check", remote=False)(check)


def check(
    session: Session,
    file: Annotated[Path | None, typer.Argument(help="TOML; else NEVE_CONFIG.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="`section.name=value`; may be repeated.")
    ] = None,
) -> None:
    """Read the settings as a service would: defaults, file, environment, flags."""
    loaded = load_settings(file, flags=settings or [])
    shown = visible(loaded)
    rows = [(name, value) for name, value in shown.items() if name != "services"]
    session.show(
        shown,
        lambda: render.lines(
            render.grid([("SETTING", ""), ("VALUE", "")], rows),
            "",
            render.grid(
                [("SERVICE", ""), ("PLANNER", ""), ("GROUPS", "")],
                [
                    (each.name, each.planner, ", ".join(group.name for group in each.groups))
                    for each in loaded.services.values()
                ],
            ),
        ),
    )


def visible(loaded: Settings) -> dict[str, Any]:
    """Return every setting by its full name, secrets hidden."""
    shown: dict[str, Any] = {}
    for row in setting_rows():
        value = getattr(getattr(loaded, row.section), row.name)
        secret = row.secret and value and value != row.default
        shown[f"{row.section}.{row.name}"] = HIDDEN if secret else value
    shown["services"] = {name: asdict(each) for name, each in loaded.services.items()}
    return shown
