"""What user requests do next. Pure.

1. A selector chooses files of a tablet; `next_step` turns its answer into a selection.
2. The planner makes jobs of the selection until all of it is results; the tablet is done.
3. When all tablets are done, `next_state` ends the request.
4. `automatic` makes requests of what a table's own selector has chosen.

    next_step   the next step in a tablet, and of the whole request
    progress    how far a request has come in a tablet
    automatic   requests that the service makes by itself
"""
