"""Requests of users: submitted, followed, cancelled, or only calculated.

    validation  a request from what a user wrote
    views       requests as wire models, and how far they are
    lifecycle   store a request, follow it, cancel it, sum up its result
    dry_run     what a request would take
    routes      the routes

The flow: (1) `validation` checks what the user wrote. (2) `lifecycle` stores the request once per
call id. (3) The coordinator carries it out. (4) `views` shows how far it is.
"""
