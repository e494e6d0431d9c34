"""How many bytes per second each attempt may move.

1. A heartbeat says what each attempt applies, has moved and waited for: `throttled_attempts`.
2. Each tick, `allocation` looks at the limits of groups and volumes, and divides them.
3. `grants` lowers a grant at once, and raises it only by what nobody may be applying.
4. The answer to the heartbeat carries the grants that change.

    grants              who may move how much, and the grant of each attempt
    throttled_attempts  the attempts that may be moving bytes, by compactor and by scope
    allocation          the limit of each scope, and how it is divided
"""
