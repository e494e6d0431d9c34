"""Névé on a Ray cluster and a Redis that run already: `neve serve`.

    preflight        what keeps a service from starting here, a sentence each
    service_actors   coordinator and gateway: find, start, replace, end
    watch            how each of them is, seen from outside; what follows from it
    watchdog         the loop of `neve serve`: start, watch, leave
    trial            what `neve serve` would need, tried for `neve doctor` and `neve status`
    probes           `/live` and `/ready`, for whoever watches the watchdog

The actors are detached: they outlive this process, and several such processes may watch the
same ones. Nobody but the watchdog imports Ray into the command line.
"""
