"""Drives user requests. What a request does next is decided in `core.requests`.

1. The scanner tells `driver` of a table or tablet that changed.
2. `driver` reads the open requests and the tablets of their ranges.
3. `tablet_steps` asks for the next step, asks selectors and planners, and applies the change.
4. When nothing is left to do in any tablet, `driver` moves the request on.

    driver           looks at requests and their tablets
    tablet_steps     one step of a request in one tablet
    selector_calls   calls of selectors, and requests of tables' own selectors
"""
