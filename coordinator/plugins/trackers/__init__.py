"""Built-in backlog trackers, one module each; entry point group `neve.trackers`.

A tracker holds one tablet and computes how many bytes its planner still has to rewrite:

    size_tiered   for planner size-tiered, in two modes; the basis of other trackers
    leveled       for planner leveled
    windows       for planners with time windows: time-window and date-tiered
    ratio         for planner ratio
    fixed         for planners without a tracker: a constant, or 0
"""
