"""An older release of this project, beside the one that is tested.

`tests/data/older_release.tar.xz` has the packages `common`, `compactor` and `coordinator` as they
were before compactors were scaled. It was made with
`git archive 46423f7 common compactor coordinator | xz -9e`. What runs with the folder first in
`PYTHONPATH` is of that release. The coordinator is there because Ray imports an actor's class
where it is called.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from neve.client import Client
from neve.local import LocalStack
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

ARCHIVE = Path(__file__).parents[1] / "data" / "older_release.tar.xz"


def older_release(folder: Path) -> Path:
    """Unpack the older release and return where it is.

    Args:
        folder: One that is empty or does not exist.
    """
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return folder


def run_from(path: Path, program: ModuleType, values: Sequence[str], stack: LocalStack) -> str:
    """Run a program with a folder first in its search path; return what it prints.

    Args:
        path: That folder: a release.
        program: A module of `tests.support` that names its variables in `VARIABLES`.
        values: The values of these variables.
        stack: What it belongs to.
    """
    variables: tuple[str, ...] = program.VARIABLES
    environ = stack.driver_environ()
    ended = subprocess.run(
        # Without the program's own folder: its modules are called like others.
        [sys.executable, "-P", str(program.__file__)],
        env=environ
        | {"PYTHONPATH": os.pathsep.join([str(path), environ["PYTHONPATH"]])}
        | dict(zip(variables, values, strict=True)),
        cwd=path,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def check_a_job_is_done(
    service: Service, client: Client, folder: Path, compactor: str, *, keyed: bool
) -> None:
    """Have a table compacted by a compactor, and the compactor drained.

    Args:
        service: Waits.
        client: Of the service.
        folder: For the table.
        compactor: The only one that there is.
        keyed: Whether the table has keys and deletes.
    """
    table = LedgerTable(client, folder, keyed=keyed)
    parts = [keyed_rows(range(1000), n) if keyed else bag_rows(1000, n) for n in range(4)]
    table.add(*parts)
    service.wait("commit", table.commits, table=table)
    service.wait_until_at_rest(table)

    # Before the first scan: the gateway reports scans, and an older coordinator that gets a call
    # which it does not have answers no later one.
    client.drain(compactor)
    service.wait("goodbye", lambda: not client.compactors())
    table.check_rows()
    history = client.history(table.name)
    assert {attempt.compactor for attempt in history} == {compactor}, (
        history,
        service.describe(table),
    )
    assert {attempt.end for attempt in history} == {"committed"}
