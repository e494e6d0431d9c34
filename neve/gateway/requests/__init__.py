"""Compaction requests: submit, follow, cancel, dry run.

    validation  validation of a user's request
    lifecycle   store a request, follow it, cancel it, sum up its result
    routes      the routes

(1) `validation` checks the user's input. (2) `lifecycle` stores the request once per call id.
(3) The coordinator executes it. (4) `lifecycle` shows its progress.
"""
