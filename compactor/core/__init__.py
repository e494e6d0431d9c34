"""Decisions of the compactor: values in, values out; no I/O, clock, randomness or logging.

    events      what has happened to an attempt
    actions     what an attempt requests
    attempt     the life of one attempt, as a state machine
    progress    progress of a rewrite, reports to the coordinator, and stalls

The flow: (1) The service turns an occurrence into an event. (2) `attempt` handles it and
returns actions. (3) The service performs each action. (4) The result comes back as an event,
until the attempt is reported.
"""
