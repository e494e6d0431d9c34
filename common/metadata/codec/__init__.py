"""Values as bytes: a version byte, then msgpack; decoded within bounds, never pickle.

In reading order:

    layout  encoding of one dataclass
    tablet  values of tablets, including files
    table   values of tables and requests
"""
