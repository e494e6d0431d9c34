"""`neve limits`, `neve group limit`, `neve volume limit`: bytes per second of rewrites."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import RenderableType

from common.units import format_bytes, format_duration
from neve import api_limits as api
from neve.cli.render import RIGHT, grid
from neve.cli.session import Session, verb

Wish = Annotated[
    str,
    typer.Argument(
        metavar="LIMIT",
        help="Per second, such as `50MB`; `none`; or `default`: what the settings say.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, "limits")(limits)
    volume = typer.Typer(no_args_is_help=True, help="Volumes: storage that tables share.")
    app.add_typer(volume, name="volume")
    verb(volume, "limit")(limit_volume)


def limits(session: Session) -> None:
    """List what groups and volumes may read and write per second, and what they do."""
    found = session.client.limits()
    session.show(found, lambda: listing(found))


def limit_group(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")],
    limit: Wish,
) -> None:
    """Limit what the rewrites of a group read and write together."""
    _limit(session, f"group {name}", limit, lambda wish: session.client.limit_group(name, wish))


def limit_volume(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="VOLUME", help="Its name.")],
    limit: Wish,
) -> None:
    """Limit what all rewrites on a volume read and write together."""
    _limit(session, f"volume {name}", limit, lambda wish: session.client.limit_volume(name, wish))


def listing(found: list[api.Limit]) -> RenderableType:
    """Return a listing of limits."""
    return grid(
        [
            ("KIND", ""),
            ("NAME", ""),
            ("LIMIT", RIGHT),
            ("NOW", RIGHT),
            ("GRANTED", RIGHT),
            ("JOBS", RIGHT),
            ("THROTTLED", RIGHT),
            ("MOVED", RIGHT),
            ("WAITED", RIGHT),
        ],
        [
            (
                each.kind,
                each.name,
                _rate(each.limit_bytes_s) + (" (default)" if each.is_default else ""),
                _rate(each.rate_bytes_s),
                _rate(each.granted_bytes_s if each.attempts else 0),
                each.attempts,
                each.throttled,
                format_bytes(each.moved_bytes),
                format_duration(each.waited_s),
            )
            for each in found
        ],
    )


def _limit(
    session: Session, what: str, limit: str, call: Callable[[int | str | None], None]
) -> None:
    wish = {"none": 0, "default": None}.get(limit, limit)
    call(wish)
    said = {"none": "not limited", "default": "limited as the settings say"}
    text = f"{what} is {said.get(limit, f'limited to {limit}/s')}"
    session.show({"limited": what, "limit": wish}, text)


def _rate(bytes_s: float | None) -> str:
    return "none" if bytes_s is None else f"{format_bytes(bytes_s)}/s"
