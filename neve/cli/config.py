"""`neve config check` and `neve config show`: the settings of a service, asked for or running."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import RenderableType

from neve.cli import render
from neve.cli.session import Session, verb


class _Shown(Protocol):
    """What is told of a setting, here or by a service."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def change(self) -> str: ...


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    config = typer.Typer(no_args_is_help=True, help="The settings of a service.")
    app.add_typer(config, name="config")
    verb(config, "check", remote=False)(check)
    verb(config, "show")(show)


def check(
    session: Session,
    file: Annotated[Path | None, typer.Argument(help="TOML; else NEVE_CONFIG.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="`section.name=value`; may be repeated.")
    ] = None,
) -> None:
    """Read the settings as `neve up` would: defaults, file, environment, flags."""
    # Here, so that the client's verbs start without the parts of a service.
    from neve.service_settings import as_document, load_service_settings, remarks, shown_settings

    loaded = load_service_settings(file, flags=settings or [])
    shown, said = shown_settings(loaded), remarks(loaded)
    session.show(
        {"settings": as_document(shown), "remarks": said},
        lambda: render.lines(_grid(shown), *(f"note: {each}" for each in said)),
    )


def show(
    session: Session,
    *,
    given: Annotated[
        bool, typer.Option("--given", help="Only settings that differ from the defaults.")
    ] = False,
) -> None:
    """Show the settings of the running service, and where each value comes from."""
    found = session.client.config()
    if given:
        found = [each for each in found if each.source != "default"]
    session.show({"settings": found}, lambda: _grid(found))


def _grid(shown: Sequence[_Shown]) -> RenderableType:
    return render.grid(
        [("SETTING", ""), ("VALUE", ""), ("SOURCE", ""), ("A CHANGE NEEDS", "")],
        [(each.name, each.text, each.source, each.change) for each in shown],
    )
