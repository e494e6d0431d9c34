"""The command line, built on `neve.client`. Each module holds one group of verbs.

    app           all verbs in one command, their groups and examples in the help
    session       shared by every verb: arguments, the client, `--json`, exit codes
    render        tables and lists for people, results about tables, names of tablets
    tables        table …, pause, resume
    imports       table import, table export
    rows          add, append, flush, call, scan
    requests      compact, request …
    tablets       table split, merge, operations, explain, analyze, quarantine, watermarks
    jobs          jobs, job …, activity, history, report
    planning      queue, plan, backlog, trigger, ops
    service       up, down, demo, logs, config, serve, status
    simulate      simulate, record
    control       control: the controller, its readings and decision
    compactors    compactor …, group …, volume …, limits
    access        token …, audit
    recovery      fsck, gc, rebuild, backup, restore
    doctor        checks of this machine, the service and storage
    top           the service in a terminal, refreshed

How a verb runs: `session` parses the arguments and locates the service. The verb calls
`neve.client`. A render function turns the result into a table. `session` prints the table or JSON,
and maps each error to one sentence and an exit code.
"""

import gc
import sys


def main() -> None:
    """Run the command line; `--version` alone loads no library."""
    if sys.argv[1:] == ["--version"]:
        from neve import __version__

        sys.stdout.write(f"neve {__version__}\n")
        return
    # Imports make many objects and no garbage.
    gc.set_threshold(100_000)
    from neve.cli.app import main as run

    run()
