"""Interfaces of plug-ins: one protocol and one parameter object per kind.

In reading order:

    dispatcher  chooses the service that plans a tablet
    options     options of a plug-in as a dataclass
    planner     files of a tablet in, jobs out
    deltas      base and deltas of a tablet, for a planner and for the listing of operations
    tracker     files of a tablet in, bytes still to be rewritten out
    controller  backlog and measured rates in; shares, bytes per second and slots out
    selector    files of a tablet in, files that a request rewrites out
    transform   rows in, changed rows out
    output      how the outputs of a job are written
"""
