"""`neve token …`, `neve audit`, `neve console`, `neve redis-acl`: rights and the record of calls.

The verbs of `neve token` edit the token file directly. They and `redis-acl` need no running
service.
"""

import hashlib
import html
import re
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from common.config import SECRET_BYTES_MAX, regular_text
from common.errors import ConfigError
from common.runtime import SystemClock
from common.units import parse_duration_s
from neve.api import AuditEntry
from neve.cli.render import WHOLE, grid, time_text
from neve.cli.service import AnyStack, ConfigFile, Home, needs_server, stack_folder
from neve.cli.session import Panel, Session, verb

if TYPE_CHECKING:
    from neve.gateway.access.tokens import NamedToken, TokenFile

TokenName = Annotated[
    str, typer.Argument(help="Name of the token.", metavar="NAME", show_default=False)
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Token file. Default: setting access.tokens_file, else the token file of the stack.",
    ),
]
Grants = Annotated[
    list[str] | None,
    typer.Option(
        "--grant",
        metavar="ROLE[:PATTERN]",
        help="read, write, compact or admin, on the tables whose names match; may be repeated.",
    ),
]


PASSWORD_LENGTH_MIN = 32


@verb(
    "token create",
    Panel.RIGHTS,
    "neve token create ci --grant read --grant write:events-* --expires 90d",
    remote=False,
)
def create(
    session: Session,
    name: TokenName,
    *,
    grant: Grants = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Lifetime, such as 90d. Default: no expiry.")
    ] = None,
    file: File = None,
    config: ConfigFile = None,
    stack: AnyStack = None,
    home: Home = None,
) -> None:
    """Create a token and print it. Only its digest is stored, so it cannot be shown again."""
    tokens = _token_file(file, config, stack, home)
    life_s = None if expires is None else parse_duration_s(expires, "--expires")
    entry, token = tokens.create(name, grant or [], now_s=SystemClock().now_s(), life_s=life_s)
    _show_token(session, tokens.path, entry, token)


@verb("token list", Panel.RIGHTS, "neve token list", remote=False)
def list_tokens(
    session: Session,
    *,
    file: File = None,
    config: ConfigFile = None,
    stack: AnyStack = None,
    home: Home = None,
) -> None:
    """List the tokens with their grants and expiry times."""
    tokens = _token_file(file, config, stack, home)
    listed, now_s = tokens.tokens(), SystemClock().now_s()
    rows = [_token_facts(token, now_s) for token in listed]
    session.show({"file": str(tokens.path), "tokens": rows}, lambda _: _render_tokens(rows))


@verb("token rotate", Panel.RIGHTS, "neve token rotate ci --overlap 1d", remote=False)
def rotate(
    session: Session,
    name: TokenName,
    *,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old token still works.")
    ] = "1d",
    file: File = None,
    config: ConfigFile = None,
    stack: AnyStack = None,
    home: Home = None,
) -> None:
    """Replace a token and print the new one. The old token stays valid during the overlap."""
    tokens = _token_file(file, config, stack, home)
    overlap_s = parse_duration_s(overlap, "--overlap")
    entry, token = tokens.rotate(name, now_s=SystemClock().now_s(), overlap_s=overlap_s)
    _show_token(session, tokens.path, entry, token)


@verb("token revoke", Panel.RIGHTS, "neve token revoke ci", remote=False)
def revoke(
    session: Session,
    name: TokenName,
    *,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id", help="Revoke only the token with this id; `neve token list` shows ids."
        ),
    ] = None,
    file: File = None,
    config: ConfigFile = None,
    stack: AnyStack = None,
    home: Home = None,
) -> None:
    """Revoke all tokens of a name, or one of them. The gateway applies this within two seconds."""
    tokens = _token_file(file, config, stack, home)
    left = tokens.revoke(name, id_)
    session.show({"revoked": name, "left": left}, f"revoked {name}; tokens left: {left}")


def _show_token(session: Session, path: Path, entry: "NamedToken", token: str) -> None:
    """Print only the token on standard output, so that it can be redirected into a file."""
    facts = _token_facts(entry, entry.created_at_s)
    if session.as_json:
        session.show({"file": str(path), **facts, "token": token}, "")
        return
    session.write(f"{token}\n")
    session.say(
        f"token {entry.name} ({facts['grants']}): its digest is stored in {path}. The token "
        "is shown only this once. Pass it as NEVE_TOKEN_FILE or NEVE_TOKEN"
    )


def _token_file(
    file: Path | None, config: Path | None, stack: str | None, home: Path | None
) -> "TokenFile":
    """Return the token file: the named one, the one in the settings, or that of the local stack.

    Raises:
        ConfigError: None of them exists.
    """
    needs_server()
    # Imported here so that verbs of the client start without loading the service.
    from neve.gateway.access.tokens import TokenFile

    if file is not None:
        return TokenFile(file.expanduser().absolute())
    from common.config import load_settings

    if path := load_settings(config).access.tokens_file:
        return TokenFile(Path(path).expanduser().absolute())
    folder = stack_folder(home, stack)
    if not folder.path.is_dir():
        raise ConfigError(
            f"there is no stack {folder.path.name!r} on this machine, and "
            "access.tokens_file is not set: name the file with --file, or the settings "
            "with --config"
        )
    given = {load_setting["name"]: load_setting["value"] for load_setting in folder.load_settings()}
    return TokenFile(Path(given.get("access.tokens_file") or folder.tokens_file))


def _token_facts(entry: "NamedToken", now_s: float) -> dict[str, Any]:
    return {
        "name": entry.name,
        "id": entry.id,
        "grants": ", ".join(entry.grants),
        "created_at_s": entry.created_at_s,
        "expires_at_s": entry.expires_at_s,
        "state": "valid" if entry.lives(now_s) else "expired",
    }


def _render_tokens(facts: Sequence[dict[str, Any]]) -> RenderableType:
    return grid(
        [
            ("TOKEN", WHOLE),
            ("ID", WHOLE),
            ("GRANTS", ""),
            ("CREATED (UTC)", ""),
            ("ENDS (UTC)", ""),
            ("STATE", ""),
        ],
        [
            (
                token["name"],
                token["id"],
                token["grants"],
                time_text(token["created_at_s"]),
                "never" if token["expires_at_s"] is None else time_text(token["expires_at_s"]),
                token["state"],
            )
            for token in facts
        ],
    )


# -------------------------------------------------------------------------------------------- Audit


@verb("audit", Panel.RIGHTS, "neve audit --table users --count 20")
def audit(
    session: Session,
    *,
    count: Annotated[int, typer.Option(help="Maximum number of entries.")] = 100,
    table: Annotated[str | None, typer.Option(help="Show only calls on this table.")] = None,
    caller: Annotated[str | None, typer.Option(help="Show only calls by this caller.")] = None,
) -> None:
    """List recorded calls, newest first: changes, and refused calls."""
    entries = session.client.audit(count, table=table, caller=caller)
    session.show({"entries": entries}, lambda _: render_audit(entries))


def render_audit(entries: Sequence[AuditEntry]) -> RenderableType:
    """Render a list of audited calls."""
    return grid(
        [
            ("TIME (UTC)", ""),
            ("CALLER", ""),
            ("ADDRESS", ""),
            ("ACTION", ""),
            ("TABLE", ""),
            ("OUTCOME", ""),
            ("ERROR", ""),
            ("CALL", ""),
            ("DETAILS", ""),
        ],
        [
            (
                time_text(entry.at_s),
                entry.caller,
                entry.address,
                entry.action,
                entry.table,
                entry.outcome,
                entry.error,
                entry.call,
                entry.details,
            )
            for entry in entries
        ],
    )


# -------------------------------------------------------------------------------------------- Redis


class AclForm(StrEnum):
    """Formats in which a user's rights are printed."""

    FILE = "file"
    """A line of `redis.conf` or of an ACL file."""
    COMMAND = "command"
    """A command for `redis-cli`."""
    RULES = "rules"
    """Only the rules, as managed services expect them ("access string")."""


@verb(
    "redis-acl",
    Panel.RIGHTS,
    "neve redis-acl store --user neve --password-file neve.password",
    remote=False,
)
def redis_acl(
    session: Session,
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help=(
                "store: the user in store.url; sentinel: the user for Sentinel; monitor: "
                "read-only, for metrics."
            ),
        ),
    ] = "store",
    *,
    user: Annotated[str, typer.Option(help="Name of the user.")] = "neve",
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the password; only its digest is printed. `-` reads standard input."
        ),
    ] = None,
    form: Annotated[
        AclForm,
        typer.Option(help="Output: a line for redis.conf, a redis-cli command, or only the rules."),
    ] = AclForm.FILE,
) -> None:
    """Print the Redis ACL rules that Névé needs: the minimum and nothing more."""
    needs_server()
    # Imported here so that verbs of the client start without loading the service.
    from common.metadata.keyspace import RedisUser, acl_rules

    try:
        redis_user = RedisUser(role)
    except ValueError:
        users = ", ".join(RedisUser)
        raise typer.BadParameter(f"role {role!r} does not exist, expected one of {users}") from None
    if form is AclForm.RULES:
        text = f"on {acl_rules(redis_user)}"
    else:
        # `reset` drops the passwords and rights that an existing user has.
        begin = "user {} on" if form is AclForm.FILE else "ACL SETUSER {} reset on"
        named = begin.format(_user(user))
        digest = hashlib.sha256(_password(password_file).encode()).hexdigest()
        text = f"{named} #{digest} {acl_rules(redis_user)}"
    session.show({"role": redis_user.value, "text": text}, text)


def _user(name: str) -> str:
    """Return the user name if it is one word; a space would start another ACL rule."""
    if not re.fullmatch(r"[\w.@-]{1,64}", name, re.ASCII):
        raise typer.BadParameter(
            f"--user {name!r}: expected 1 to 64 letters, digits, `_`, `.`, `@`, `-`"
        )
    return name


def _password(file: Path | None) -> str:
    """Return the password. It must be hard to guess, because Redis stores a fast digest.

    Raises:
        BadParameter: No file is given.
        ConfigError: The file cannot be read, or the password is too short.
    """
    if file is None:
        raise typer.BadParameter(
            "--password-file is missing: `openssl rand -hex 32 > FILE` creates a password, "
            "and `--form rules` prints rules without one"
        )
    try:
        text = sys.stdin.read() if str(file) == "-" else regular_text(file, SECRET_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--password-file {file} cannot be read: {error}") from error
    password = text.rstrip("\r\n")
    if len(password) < PASSWORD_LENGTH_MIN or re.search(r"\s", password):
        raise ConfigError(
            f"--password-file {file}: expected one line of at least {PASSWORD_LENGTH_MIN} "
            "characters without spaces; `openssl rand -hex 32` creates such a password"
        )
    return password


# ------------------------------------------------------------------------------------------ Console


BROWSER_READS_S = 5.0
"""How long a browser may take to read the file that leads it to the console."""


@verb("console", Panel.SEE, "neve console --print")
def console(
    session: Session,
    *,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the link instead of opening a browser.")
    ] = False,
) -> None:
    """Open the console in a browser, signed in with the rights of your token.

    The link works once, within five minutes.
    """
    link = session.client.console_link()
    if print_ or session.as_json:
        session.show(link, link.link)
        return
    if not _open_browser(link.link):
        session.say("no browser could be opened; open this link, which works once:")
        session.show(link, link.link)
        return
    session.show(link, "the console opens in your browser; `neve console --print` prints a link")


def _open_browser(link: str) -> bool:
    """Open a link in a browser, and return whether there is one.

    Other users of the machine see the arguments of a browser's process. So it opens a file that
    only this user can read, and that leads to the link.
    """
    with tempfile.NamedTemporaryFile("w", prefix="neve-console-", suffix=".html") as file:
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(link)}">'
        )
        file.flush()
        if not webbrowser.open(Path(file.name).as_uri()):
            return False
        threading.Event().wait(BROWSER_READS_S)
    return True
