"""`neve table split`, `merge`, `operations`: answers, JSON, exit codes."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from neve.client import Client
from tests.support.gateway import TOKEN, Gateway
from tests.support.shell import Shell
from tests.unit.neve.test_gateway_operations import Drives, client, gateway, rows

__all__ = ["client", "gateway"]


def common_prefix(one: str, other: str) -> str:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(letter for letter, _ in pairs)


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


def test_an_id_may_be_shortened_to_a_unique_prefix(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    for key in ("5", "6", "7000"):
        with Drives(gateway, client):
            client.split("events", at=key, wait=True)
    ends = [tablet.tablet for tablet in client.tablets("events")][:-1]
    common = common_prefix(*ends[:2])

    for size in range(len(common) + 1, len(ends[0])):
        neve.run("explain", "events", ends[0][:size])
    neve.run("explain", "events", common, code=2, says=f"ambiguous: the ids {ends[0]}, {ends[1]}")
    neve.run("explain", "events", f"{ends[0]}00", code=2, says="has no tablet")
    neve.run("explain", "events", "", code=2, says="has no tablet")
    words = ("lower-watermark", "events", ends[0][:-2])
    neve.run(*words, code=2, says=f"needs the whole id, such as '{ends[0]}'")

    neve.run("job", "cancel", "att", says="cancelling att")
    neve.run("job", "cancel", "job-0", says="cancelling job-0")
    neve.run("job", "cancel", "job-1", says="cancelled job-1")
    neve.run("job", "pause", "job-1", says="paused job-1; `neve job resume job-1` queues it again")
    neve.run("job", "resume", "job-1", says="resumed job-1")
    neve.run("job", "pause", "job-2", code=2, says="no queued job has id 'job-2'")
    neve.run("job", "cancel", "job-2", code=2, says="no queued job has id 'job-2'")
    neve.run("job", "cancel", "att-2", code=2, says="no running job has attempt 'att-2'")
    neve.run("compactor", "drain", "loc", says="loc is draining")
    neve.run("compactor", "drain", "local-", code=2, says="expected one of: local-1")

    first, second = (client.compact("events", start=key, end=key).id for key in ("1", "9"))
    common = common_prefix(first, second)
    neve.run("request", "show", "events", first[: len(common) + 1], says=first)
    neve.run("request", "show", "events", common, code=2, says="is ambiguous: the ids req-")
    neve.run("request", "cancel", "events", second[: len(common) + 1], says="is being cancelled")
    assert client.request("events", second).status().state == "cancelling"
