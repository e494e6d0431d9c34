"""What a directory holds that could be a table: listed, looked into, surveyed.

    listing    which files there are             reads names
    footers    what each says of itself          reads footers
    folders    what partition folders mean       pure
    survey     which of them make one table      pure

The door that writes is `neve.gateway.importing`.
"""
