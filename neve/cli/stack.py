"""`neve up`, `neve down`, `neve demo`: a whole service on this machine."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigError
from neve.cli.session import Session, verb

StackName = Annotated[str, typer.Option("--stack", help="Name of the stack.", envvar="NEVE_STACK")]
Home = Annotated[Path | None, typer.Option(help="Where stacks live.", envvar="NEVE_HOME")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, "up", remote=False)(up)
    verb(app, "down", remote=False)(down)
    verb(app, "demo", remote=False)(demo)


def up(
    session: Session,
    *,
    stack: StackName = "default",
    home: Home = None,
    compactors: Annotated[int, typer.Option(help="Each takes about 1.5 GB of memory.")] = 1,
    slots: Annotated[int | None, typer.Option(help="Jobs at a time per compactor.")] = None,
    port: Annotated[int | None, typer.Option(help="Of the gateway; else a free one.")] = None,
) -> None:
    """Start Redis, Ray, a coordinator, compactors and a gateway on this machine."""
    needs_server()
    # Here, so that the client's verbs start without it.
    from neve.local import LocalStack, StackOptions

    options = StackOptions(compactors=compactors, gateway_port=port).with_slots(slots)
    started = LocalStack.start(home=home, name=stack, options=options, on_progress=session.say)
    told = {
        "stack": started.name,
        "url": started.gateway_url,
        "token_file": str(started.folder.token_file),
    }
    session.show(
        told,
        f"Névé runs at {started.gateway_url}\n"
        f"its interface: {started.gateway_url}/docs   its token: {started.folder.token_file}\n"
        "next: neve status, neve table create, neve demo; neve down ends it",
    )


def down(
    session: Session,
    stack: StackName = "default",
    home: Home = None,
    *,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Also forget its tables and token.")
    ] = False,
) -> None:
    """End the stack of this machine, and nothing else; its data stays."""
    needs_server()
    import os

    from neve.local.stack import stop
    from neve.local.state import StackFolder

    ended = stop(StackFolder.of(home, stack, os.environ), delete_data=delete_data)
    session.show(
        {"stack": stack, "ended": ended}, f"stack {stack} {'ended' if ended else 'was not running'}"
    )


def demo(
    session: Session,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running.")] = False,
    compactors: Annotated[int, typer.Option(help="Each takes about 1.5 GB of memory.")] = 2,
) -> None:
    """See a table of several hundred small files being compacted on this machine."""
    if importlib.util.find_spec("neve.demo") is None:
        raise ConfigError(
            "the demo is not part of this installation; install `neve[server,embedded,demo]`"
        )
    needs_server()
    module = importlib.import_module("neve.demo")
    if code := module.main(keep=keep, compactors=compactors):
        raise typer.Exit(code)


def needs_server() -> None:
    """Refuse if this installation is only the client.

    Raises:
        ConfigError: It is.
    """
    missing = [
        name for name in ("ray", "redis", "psutil") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ConfigError(
            f"this installation is the client only ({', '.join(missing)} missing): "
            "install `neve[server,embedded]` to run a service"
        )
