"""`neve token …` and `neve audit`, as people type them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import Result

from neve.client.errors import ForbiddenError
from neve.gateway.access.tokens import digest_of
from tests.support.command_line import invoke
from tests.support.gateway import TOKEN, Gateway, serving


@dataclass
class Shell:
    """A shell with one token file, and perhaps a gateway that reads it."""

    file: Path
    gateway: Gateway

    def run(self, *words: str, **more: str) -> Result:
        environ: Mapping[str, str | None] = {
            "NEVE_HOME": str(self.file.parent / "home"),
            "NEVE_ACCESS_TOKENS_FILE": str(self.file),
            "NEVE_URL": self.gateway.url,
            **more,
        }
        return invoke(words, environ)

    def ask(self, *words: str, **more: str) -> Result:
        """Run a verb of a client: settings of a service are none of its business."""
        return self.run(*words, NEVE_TOKEN=TOKEN, **more)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    file = tmp_path / "tokens.json"
    with serving(access={"tokens_file": str(file)}) as gateway:
        yield Shell(file, gateway)


def test_a_token_is_printed_once_and_alone(shell: Shell) -> None:
    made = shell.run("token", "create", "ci", "--grant", "read", "--grant", "write:events-*")
    token = made.stdout.removesuffix("\n")

    assert made.exit_code == 0
    assert "\n" not in token
    assert digest_of(token.encode()) in shell.file.read_text()
    assert "shown only this once" in made.stderr
    listed = shell.run("token", "list")
    assert "ci" in listed.stdout
    assert "read, write:events-*" in listed.stdout
    assert token not in listed.stdout

    with shell.gateway.client(token) as client:
        assert client.tables() == []
        with pytest.raises(ForbiddenError):
            client.audit()


def test_json_has_the_token_and_the_file(shell: Shell) -> None:
    made = shell.run("token", "create", "ci", "--grant", "admin", "--expires", "90d", "--json")
    told = json.loads(made.stdout)

    assert told["file"] == str(shell.file)
    assert told["expires_at_s"] - told["created_at_s"] == 90 * 86_400
    assert told["token"].startswith("neve_")


def test_rotate_and_revoke(shell: Shell) -> None:
    old = shell.run("token", "create", "ci", "--grant", "read").stdout.strip()
    new = shell.run("token", "rotate", "ci", "--overlap", "1h").stdout.strip()
    listed = json.loads(shell.run("token", "list", "--json").stdout)["tokens"]

    assert [each["name"] for each in listed] == ["ci", "ci"]
    assert {each["id"] for each in listed} == {digest_of(each.encode())[:8] for each in (old, new)}
    assert shell.run("token", "revoke", "ci", "--id", listed[0]["id"]).exit_code == 0
    assert shell.run("token", "revoke", "ci").exit_code == 0
    assert json.loads(shell.run("token", "list", "--json").stdout)["tokens"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "ci"), 2, "0 grants are given"),
        (("create", "Ci", "--grant", "read"), 2, "must be a DNS label"),
        (("create", "ci", "--grant", "root"), 2, "names no role"),
        (("revoke", "nobody"), 2, "no token is named 'nobody'"),
        (("rotate", "nobody"), 2, "no token is named 'nobody'"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], code: int, said: str, shell: Shell) -> None:
    refused = shell.run("token", *words)
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr


def test_without_a_file_it_is_said_which_ways_there_are(shell: Shell) -> None:
    refused = shell.run("token", "list", NEVE_ACCESS_TOKENS_FILE="")
    assert refused.exit_code == 1
    assert "--file" in refused.stderr


def test_the_token_of_a_command_line_warns(shell: Shell) -> None:
    shown = shell.run("table", "list", "--token", TOKEN)
    assert shown.exit_code == 0
    assert "NEVE_TOKEN_FILE" in shown.stderr
    assert "note" not in shell.ask("table", "list").stderr


def test_the_token_may_come_from_a_file(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    assert shell.run("table", "list", NEVE_TOKEN_FILE=str(secret)).exit_code == 2
    secret.write_text("\n")
    assert "is empty" in shell.run("table", "list", NEVE_TOKEN_FILE=str(secret)).stderr
    secret.write_text(f"{TOKEN}\n")
    assert shell.run("table", "list", NEVE_TOKEN_FILE=str(secret)).exit_code == 0


def test_the_audit_is_shown(shell: Shell) -> None:
    assert shell.ask("pause", "nothing").exit_code == 2
    entries: list[dict[str, object]] = []
    # The call has begun first; how it ended is written a moment later.
    while not entries or entries[0]["outcome"] == "begun":
        entries = json.loads(shell.ask("audit", "--json").stdout)["entries"]

    assert [(entry["table"], entry["outcome"]) for entry in entries] == [("nothing", "refused")]
    shown = shell.ask("audit", "--table", "nothing").stdout
    assert "POST /v1/tables/{table}/pause" in shown
    assert "UnknownTableError" in shown
    assert "nothing" not in shell.ask("audit", "--caller", "ci").stdout
