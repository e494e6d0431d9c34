"""Built-in planners, one module each; entry point group `neve.planners`.

A planner is asked for one tablet at a time:

    ratio   merges sets of files that are large compared with their largest
"""
