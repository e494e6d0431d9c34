"""Built-in planners, one module each; entry point group `neve.planners`.

ratio   merges sets of files that are large compared with their largest
"""
