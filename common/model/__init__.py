"""The model: frozen values without I/O, one module per idea.

In reading order:

    outcome            refusals, and how an attempt ended
    fields             type checks for the fields of a value; unknown fields are kept
    table              a table: identity, schema, settings
    key_values         the values that keys consist of, and their text form
    file               a data file with its statistics
    job                a job, its priority, the plan that it belongs to
    tablet             a tablet: bounds, files, reservations, selection, operation
    keys               keys as bytes that sort like their values; bounds of keys
    request            a user's request, its ranges, its progress
    group              compaction groups, services, limits on bytes per second
    location_identity  whether two locations share files; paths that only the service writes
"""
