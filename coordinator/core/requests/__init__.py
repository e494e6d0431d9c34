"""The next steps of user requests. Pure.

1. A selector chooses files of a tablet; `next_step` turns its answer into a selection.
2. The planner makes jobs from the selection until only results are left; the tablet is then done.
3. When all tablets are done, `next_state` ends the request.
4. `automatic` creates requests from the choice of a table's own selector.

    next_step   the next step in a tablet, and of the whole request
    progress    progress of a request in a tablet
    automatic   requests that the service creates
"""
