"""Delta tables: their log, read and written by the protocol of Delta 4. No other engine is used.

In reading order:

    vectors   deletion vectors as bytes
    actions   entries of the log, read as untrusted values and written, with a file's statistics
    features  what Névé can compact, and schemas
    log       versions and checkpoints, read whole or from a known version on
    checkpoints  checkpoints, and the clean-up of the log below them
    vacuum    files that no version needs any more
    source    the port: load, look, send
    publication  the log that the service writes of a native table
"""
