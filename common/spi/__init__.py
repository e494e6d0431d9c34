"""Interfaces of plug-ins: one protocol and one parameter object per kind.

In reading order:

    options     options of a plug-in as a dataclass
    planner     which service plans a tablet, its jobs, and the files that a request takes;
                transforms of rows, and how the outputs of a job are written
    deltas      base and deltas of a tablet, for a planner and for listings of maintenance
    controller  backlog and measured rates in; shares, bytes per second and slots out
"""
