"""How much compaction there is: built-in controllers, by the interface of `common.spi.controller`.

curves  backlog over memory, or time to drain over a goal → shares along a line with points
debt    slots that grow with what is owed, and shares that stay as they are set
"""
