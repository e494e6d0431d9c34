"""Built-in backlog trackers, one module each; entry point group `neve.trackers`.

Each holds one tablet and tells how many bytes its planner still has to rewrite:

    size_tiered   for planner size-tiered, in two modes; also what the others are made of
    leveled       for planner leveled
    windows       for planners that go by windows of time: time-window and date-tiered
    ratio         for planner ratio
    fixed         for planners without a tracker: always the same number, or 0
"""
