"""Névé on an existing Ray cluster and Redis: `neve serve`.

    preflight        checks before a start; one sentence per problem
    watch            the condition of each actor, and the remedy
    watchdog         the loop of `neve serve`: start, watch, replace, stop; `/live`, `/ready`
    trial            tests the requirements of `neve serve`, for `neve doctor` and `neve status`

The actors are detached. They outlive this process, and several such processes may watch the same
actors. The watchdog is the only part of the command line that imports Ray.
"""
