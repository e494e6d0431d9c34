"""The coordinator: finds work, orders it, hands it out, and follows requests to their end.

What lives here decides; what rewrites files is `compactor`, and neither imports the
other. `core` and `plugins` are values in, values out; the shell round them does I/O.
"""
