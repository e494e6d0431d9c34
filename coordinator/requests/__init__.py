"""Drives user requests. `core.requests` decides on the next step of a request.

1. The scanner notifies `driver` of a changed table or tablet.
2. `driver` reads the open requests and the tablets of their ranges.
3. `tablet_steps` gets the next step, calls selectors and planners, and applies the change.
4. When no tablet has work left, `driver` changes the state of the request.

    driver           reads requests and their tablets
    tablet_steps     one step of a request in one tablet
    selector_calls   calls of selectors, and requests of tables' own selectors
"""
