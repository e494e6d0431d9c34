"""Rate limits: how many bytes per second each attempt may move.

1. A heartbeat reports the applied rate, moved bytes and waits of attempts: `throttled_attempts`.
2. Each tick, `allocation` divides the limits of groups and volumes between the attempts.
3. `grants` lowers a grant at once, and raises it only by the rate that no attempt may be using.
4. The answer to the heartbeat carries the changed grants.

    grants              the target and the grant of each attempt
    throttled_attempts  the attempts that may be moving bytes, by compactor and by scope
    allocation          the limit of each scope, and how it is divided
"""
