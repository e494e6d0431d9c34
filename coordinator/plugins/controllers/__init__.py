"""Built-in controllers, which limit compaction; they implement `common.spi.controller`.

curves  backlog over memory, or time to drain over a goal → shares on a piecewise line
debt    slots that grow with the backlog, and fixed shares
"""
