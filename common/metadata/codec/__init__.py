"""Values as bytes: a version byte, then msgpack; decoded within bounds, never pickle.

In reading order:

    layout  how one dataclass is written
    tablet  what belongs to tablets, their files first
    table   what belongs to tables, and requests
"""
