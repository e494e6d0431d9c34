"""Access control: callers, their rights and quotas, and the audit.

    callers           roles, grants, callers, and the current call
    tokens            the file of named tokens, which stores only digests
    oidc              tokens of an OpenID issuer, verified with its keys
    route_rights      the right that each route requires
    quotas            limits per caller
    audit             one entry for each call that may change something

A call: `authentication` finds the caller with `tokens` or `oidc` → `quotas` admits the call →
`audit` records its begin → `route_rights` checks the right of the route → the look-up of the table
checks its name → `audit` records the outcome.
"""
