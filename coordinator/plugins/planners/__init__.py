"""Built-in planners, one module each; entry point group `neve.planners`."""
