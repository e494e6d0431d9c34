"""Wire models shared by the coordinator, the gateway, the client and the command line.

This package is the lowest layer of the project. It imports only the standard library, so that every
process can import it, and a notebook can have its own packages with the names of the service's
packages. Each class is defined once: the coordinator creates it, the gateway returns it, the client
decodes it from JSON, and the command line shows it. All classes can be imported from here; the
modules are loaded when the first class is, because they take 0.1 s of processor time.

    tables        creation, change and description of tables
    tablets       tablets, their explanation and story, splits and merges
    rows          adds, appends, calls, and the stream of a scan
    imports       import of an existing directory as a table
    requests      compaction requests and their progress
    jobs          running jobs and finished attempts
    compactors    status, groups, scaling, limits on bytes per second
    planning      plans, backlog, triggers, maintenance and simulations
    control       state of the controller, and reports of readers
    access        entries of the audit
    recovery      fsck, gc, rebuild, backup, restore
    service       status and settings of the service
    messages      limits of bodies, content types, compatibility between releases
    column_types  types of columns as text
    files         opening of files that an operator names
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neve.api.access import *
    from neve.api.compactors import *
    from neve.api.control import *
    from neve.api.imports import *
    from neve.api.jobs import *
    from neve.api.messages import *
    from neve.api.planning import *
    from neve.api.recovery import *
    from neve.api.requests import *
    from neve.api.rows import *
    from neve.api.service import *
    from neve.api.tables import *
    from neve.api.tablets import *
else:
    from importlib import import_module

    _MODULES = (
        "access",
        "compactors",
        "control",
        "imports",
        "jobs",
        "messages",
        "planning",
        "recovery",
        "requests",
        "rows",
        "service",
        "tables",
        "tablets",
    )

    def __getattr__(name):
        """Load all modules when the first class is used."""
        if name in globals():
            return globals()[name]
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            names = vars(import_module(f"{__name__}.{module}"))
            globals().update((key, value) for key, value in names.items() if key[0] != "_")
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]
