"""`neve table split`, `merge`, `operations`: answers, JSON, exit codes."""

from __future__ import annotations

from pathlib import Path

from neve.client import Client
from tests.support.gateway import TOKEN, Gateway
from tests.support.shell import Shell
from tests.unit.neve.test_gateway_operations import Drives, client, gateway, rows

__all__ = ["client", "gateway"]


def test_splits_and_merges_run_from_the_command_line(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    client.append("events", rows(1, 9))
    neve.run("table", "operations", "events", says="none")
    neve.run("table", "split", "events", "--at", "5", says="split at [5] started; `neve table op")
    neve.run("table", "operations", "events", says="files cross the cut")
    (found,) = neve.json("table", "operations", "events")
    assert (found["kind"], found["step"], found["tablets"]) == ("split", "cut", ["last"])
    neve.run("table", "split", "events", "--at", "6", code=3, says="a split is under way")
    neve.run("table", "merge", "events", "--abandon", says="no merge is in progress")
    neve.run("table", "split", "events", "--abandon", says="abandoned: split at [5]")
    neve.run("table", "split", "events", "--abandon", says="no split is in progress")

    with Drives(gateway, client):
        neve.run(
            "table", "split", "events", "--at", "9", "--wait", says="split of events has ended"
        )
        neve.run("table", "split", "events", "--at", "9", "--wait", says="nothing to do")
        neve.run(
            "table", "merge", "events", "--from", "1", "--to", "10", "--wait", says="has ended"
        )
    wrong = {
        ("split", "--abandon", "--at", "5"): "--abandon accepts only --tablet",
        ("merge", "--abandon", "--from", "5"): "--abandon accepts only --tablet",
        ("split", "--at", "5", "--into", "3"): "--into needs --tablet",
        ("split", "--at", "5", "--timeout", "3"): "--timeout needs --wait",
        ("merge",): "give --tablet, or --from and --to",
    }
    for (verb, *words), says in wrong.items():
        neve.run("table", verb, "events", *words, code=2, says=says)
