"""The command line: a client like any other. One module per group of verbs.

    app           all verbs in one command, their groups and examples in the help
    session       what every verb has: arguments, the client, `--json`, exit codes
    render        tables and lists for people, and results about tables
    tablet_keys   tablets by their keys, as people write them
    stack         up, down, demo, logs, config
    serve         serve: on a cluster that runs already
    tables        table …, pause, resume
    imports       table import, table export
    split_merge   table split, merge, operations
    rows          add, append, call, scan
    requests      compact, request …, job cancel
    work          status, jobs, queue, explain, plan, history, limits
    backlog       backlog: of a service, or of a file
    maintenance   trigger, ops
    simulate      simulate, record
    control       control: the controller, its readings and decision
    compactors    compactor …, group …
    access        token …, audit
    recovery      fsck, gc, rebuild, backup, restore
    doctor        what keeps Névé from working here

A verb: `session` parses and finds the service → the verb calls `neve.client` → a render function
makes a table → `session` prints it, or JSON, and errors become one sentence and an exit code.
"""

from neve.cli.app import main

__all__ = ["main"]
