"""What all verbs share: common arguments, the client, `--json`, and errors with exit codes."""

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event
from types import FunctionType, ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from common.errors import (
    CompactionError,
    ConfigError,
    ConflictError,
    InputError,
    RefusedError,
    RequestError,
    SettingError,
    UnavailableError,
    UnknownOutcomeError,
)
from neve.cli.render import KnownTables
from neve.client import Client
from neve.client.connect import connect, find_target
from neve.client.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE, NeveError
from neve.client.errors import UnavailableError as NeveUnavailableError

# ------------------------------------------------------------------- Arguments that many verbs have


Name = Annotated[
    str, typer.Argument(help="Name of the table.", metavar="TABLE", show_default=False)
]
OptionalTablet = Annotated[
    str | None,
    typer.Argument(
        help="Id of the tablet; `neve table tablets` shows it.",
        metavar="[TABLET]",
        show_default=False,
    ),
]
Columns = Annotated[str | None, typer.Option(help="Column names, separated by commas.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Setting, `name=value`; may be repeated.")
]

Watch = Annotated[bool, typer.Option("--watch", help="Refresh the output until Ctrl-C.")]
Every = Annotated[
    float, typer.Option(help="With --watch: seconds between refreshes.", min=0.2, max=3600)
]

Count = Annotated[int, typer.Option(help="Maximum number of entries.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List every file that is left out with its reason.")
]
WholeIds = Annotated[bool, typer.Option("--verbose", help="Show whole ids.")]


def names(texts: str | None) -> tuple[str, ...]:
    """Return column names from a comma-separated text."""
    return tuple(part.strip() for part in (texts or "").split(",") if part.strip())


DOCUMENT_BYTES_MAX = 512 * 1024**2


def document_text(path: Path) -> str:
    """Return the text of a file named by the user.

    Raises:
        InputError: The file cannot be read, is not a regular file, or is too large.
        RequestError: The file is not text.
    """
    from common.config import regular_text

    try:
        return regular_text(path, DOCUMENT_BYTES_MAX)
    except OSError as error:
        raise InputError(f"file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"file {path} is not UTF-8: {error}") from error


def json_document(path: Path) -> Any:
    """Return the content of a JSON file named by the user.

    Raises:
        InputError: The file cannot be read.
        RequestError: The file is not JSON.
    """
    try:
        return json.loads(document_text(path))
    except ValueError as error:
        raise RequestError(f"file {path} is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError(f"file {path} is nested too deeply, expected a tablet") from error


def absolute(location: str) -> str:
    """Return a location; a relative path is resolved against the working directory."""
    return location if "://" in location else str(Path(location).expanduser().resolve())


# -------------------------------------------------------------------------------- One run of a verb


EXIT_INTERRUPTED = 130
WIDTH_PIPED = 4096
"""Output to a file or another program is not folded."""
EXIT_BY_BRANCH: tuple[tuple[type[CompactionError], int], ...] = (
    (RequestError, EXIT_USAGE),
    (SettingError, EXIT_USAGE),
    (RefusedError, EXIT_REFUSED),
    (ConflictError, EXIT_REFUSED),
    (UnavailableError, EXIT_UNAVAILABLE),
    (UnknownOutcomeError, EXIT_UNAVAILABLE),
)
"""Exit codes for verbs that need no service; all other errors exit with EXIT_FAILED."""

COMMON_PANEL = "Service and output"

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=COMMON_PANEL)
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of the service. Default: NEVE_URL, else the stack on this machine.",
        rich_help_panel=COMMON_PANEL,
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Name of a stack on this machine. Default: NEVE_STACK, else the only one.",
        rich_help_panel=COMMON_PANEL,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        help=(
            "Bearer token; visible to all users of this machine. Default: NEVE_TOKEN_FILE, "
            "NEVE_TOKEN."
        ),
        rich_help_panel=COMMON_PANEL,
    ),
]

REMOTE = {"url": UrlOption, "stack": StackOption, "token": TokenOption}
"""Options of every verb that calls a service."""


_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and characters that change the writing direction."""


def visible(text: str) -> str:
    """Return a text with escapes in place of characters that would control a terminal."""
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


class TerminalConsole(Console):
    """Console for human-readable output; text from outside cannot control the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the printed segments; control segments of rich itself pass unchanged."""
        for segment in super().render(renderable, options):
            safe = segment.control or segment.text == visible(segment.text)
            yield segment if safe else Segment(visible(segment.text), segment.style)


class Session:
    """One run of a verb: its output streams, and the client, created on first use."""

    def __init__(
        self,
        *,
        as_json: bool,
        url: str | None = None,
        token: str | None = None,
        stack: str | None = None,
    ) -> None:
        self.as_json = as_json
        self.url = url
        self.stack = stack
        self._token = token
        self._client: Client | None = None
        self._out = TerminalConsole(
            highlight=False, width=None if sys.stdout.isatty() else WIDTH_PIPED
        )
        self._err = TerminalConsole(stderr=True, soft_wrap=True, highlight=False)

    @property
    def client(self) -> Client:
        """The client of the selected service."""
        if self._client is None:
            if self._token is not None:
                self.say(
                    "note: all users of this machine can see --token in the process list; "
                    "use NEVE_TOKEN_FILE or NEVE_TOKEN instead"
                )
            self._client = connect(self.url, self._token, stack=self.stack)
        return self._client

    @property
    def keys(self) -> KnownTables:
        """The keys of tablets; tables are read when the first tablet is shown."""
        return KnownTables(self.client.tables)

    def show(self, value: Any, render: Callable[[Any], RenderableType] | RenderableType) -> None:
        """Print a result: as JSON, or in the human-readable form that `render` returns for it."""
        if self.as_json:
            self.write(json.dumps(to_dictionaries(value), indent=2, default=str) + "\n")
        else:
            with self._out.capture() as capture:
                self._out.print(render(value) if callable(render) else render, markup=False)
            self.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))

    def show_or_watch(
        self,
        look: Callable[[], Any],
        render: Callable[[Any], RenderableType],
        *,
        watch: bool,
        every_s: float,
    ) -> None:
        """Print a result once, or repeatedly until Ctrl-C.

        Args:
            look: Fetches the result.
            render: Returns the human-readable form. With `--json` and `watch`, each result is one
                line.
            watch: Whether to repeat.
            every_s: Interval between repetitions.
        """
        if not watch:
            result = look()
            self.show(result, render)
            return
        pause = Event()
        while True:
            result = look()
            if self.as_json:
                self.write(json.dumps(to_dictionaries(result), default=str) + "\n")
            else:
                self.show(result, render)
                self.write("\n")
            pause.wait(every_s)

    def write(self, text: str) -> None:
        """Write text to standard output unchanged, and flush."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print a message on standard error, except with `--json`."""
        if not self.as_json:
            self._err.print(text, markup=False)

    def step(self, name: str, text: str, **facts: Any) -> None:
        """Report a step of a long-running verb: one line of JSON, or a sentence.

        Args:
            name: Name of the step, for programs.
            text: Message for people, on standard error.
            facts: Fields for programs, in place of the text.
        """
        if self.as_json:
            self.write(json.dumps({"step": name, **(facts or {"text": text})}) + "\n")
        else:
            self.say(f"{name}: {text}")

    @property
    def stack_faults(self) -> tuple[str, ...]:
        """Return a sentence for each failed process of the selected stack."""
        try:
            return find_target(self.url, stack=self.stack).faults
        except NeveError:
            return ()

    def fail(self, error: Exception, name: str, faults: Iterable[str] = ()) -> None:
        """Print an error, and the `faults` that may have caused it."""
        detail = "; ".join((str(error), *faults))
        if self.as_json:
            body = {"error": name, "detail": detail, "code": getattr(error, "code", "")}
            sys.stderr.write(json.dumps(body) + "\n")
        else:
            self._err.print(f"neve: {detail}", markup=False)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()


def to_dictionaries(value: Any) -> Any:
    """Return a value with its wire models converted to dictionaries."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: to_dictionaries(item) for name, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [to_dictionaries(item) for item in value]
    return value


class Panel(StrEnum):
    """Groups of verbs in the help, in display order."""

    RUN = "Run a service"
    TABLES = "Tables and rows"
    COMPACTIONS = "Compactions"
    SEE = "See what happens and why"
    CONTROL = "Control"
    RIGHTS = "Rights"
    REPAIR = "Repair and keep"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb as its function declares it."""

    words: str
    """The words after `neve`, such as `table list`."""
    panel: Panel
    example: str
    """A command that can be typed as shown."""
    run: Callable[..., None]
    """The function for typer, which takes the common options."""
    remote: bool

    def with_signature(self) -> Callable[..., None]:
        """Return `run` with the signature that typer reads: its options and the common ones."""
        run = self.run
        work = inspect.unwrap(run)
        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        common = [_option("as_json", JsonFlag, default=False)]
        if self.remote:
            common += [_option(name, annotation) for name, annotation in REMOTE.items()]
        run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {
            parameter.name: parameter.annotation for parameter in [*own, *common]
        }
        return run


def verb(
    words: str, panel: Panel, example: str, *, remote: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a function with a first argument `session` as a verb.

    Args:
        words: The words after `neve`.
        panel: Its group in the help.
        example: A command that can be typed as shown.
        remote: Whether the verb calls a service and therefore has `--url`, `--stack` and `--token`.
    """

    def declare(work: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(work)
        def run(**given: Any) -> None:
            as_json = given.pop("as_json")
            where = {name: given.pop(name, None) for name in REMOTE} if remote else {}
            session = Session(as_json=as_json, **where)
            code = exit_code_of(session, functools.partial(work, session, **given))
            if code:
                raise typer.Exit(code)

        work.verb = Verb(words, panel, example, run, remote)  # type: ignore[attr-defined]  # `declared_verbs` reads it
        return work

    return declare


def declared_verbs(module: ModuleType) -> Iterator[Verb]:
    """Yield the verbs that the functions of a module declare, in their order."""
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            declared = getattr(value, "verb", None)
            if declared is not None:
                yield declared


def exit_code_of(session: Session, work: Callable[[], None]) -> int:
    """Run the work and return the exit code; print expected errors as one sentence."""
    try:
        work()
    except NeveError as error:
        away = isinstance(error, NeveUnavailableError)
        session.fail(error, error.error, session.stack_faults if away else ())
        return error.exit_code
    except CompactionError as error:
        session.fail(error, type(error).__name__)
        return next((code for kind, code in EXIT_BY_BRANCH if isinstance(error, kind)), EXIT_FAILED)
    except BrokenPipeError:
        # The reader of the output has closed it. Without this, Python reports an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        session.fail(ConfigError(_about_file(error)), "ConfigError")
        return EXIT_FAILED
    except KeyboardInterrupt:
        session.say("interrupted")
        return EXIT_INTERRUPTED
    finally:
        session.close()
    return 0


def _about_file(error: OSError) -> str:
    """Describe a failure to use a file or folder named by the user."""
    cause = error.strerror or str(error)
    return f"{error.filename} cannot be used: {cause}" if error.filename else cause


def _option(name: str, annotation: Any, *, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def name_values(texts: Iterable[str], what: str) -> dict[str, str]:
    """Return `name=value` texts as a dictionary.

    Args:
        texts: Texts given by the user.
        what: What a text stands for, such as "setting"; used in the message.

    Raises:
        RequestError: A text has no `=`.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RequestError(f"{what} {text!r} is not of the form name=value")
        values[name.strip()] = value.strip()
    return values
