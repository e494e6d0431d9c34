"""Access control: callers, their rights and quotas, and the audit.

    callers           roles, grants, callers, the current call, the right of each route
    tokens            the file of named tokens, which stores only digests
    oidc              tokens of an OpenID issuer, verified with its keys
    sessions          sign-in to the console at an OpenID issuer, one-time codes, browser sessions
    quotas            limits per caller, and limits of all concurrent scans
    audit             one entry for each call that may change something

A call: `authentication` finds the caller with `tokens` or `oidc` → `quotas` admits the call →
`audit` records its begin → `callers` checks the right of the route → the look-up of the table
checks its name → `audit` records the outcome.
"""
