"""Who calls, what a caller may do, and how much of it; and the line that is kept of it.

    callers           roles, grants, callers, and the call under way
    tokens            the file of named tokens, of which only digests are kept
    oidc              tokens of an OpenID issuer, checked against its keys
    route_rights      the right that each route asks for
    quotas            how much one caller may do at a time
    audit             one line for each call that may change something

A call: `authentication` finds the caller by `tokens` or `oidc` → `quotas` lets it pass → `audit`
notes it → `route_rights` compares the right of the route → the look-up of the table compares its
name → `audit` notes the outcome.
"""
