"""Decisions of the compactor: values in, values out; no I/O, clock, chance or logging.

    events      what has happened to an attempt
    actions     what an attempt wants done
    attempt     the life of one attempt, as a state machine
    progress    how far a rewrite is, what the coordinator hears, and who stalls

The flow: (1) the service turns what happened into an event. (2) `attempt` handles it and
returns actions. (3) The service performs each action. (4) The result comes back as an event,
until the attempt is reported.
"""
