"""Built-in plug-ins. They use the same interface as others and import only `common`.

1. `registry` loads a plug-in by name, a built-in one like any other.
2. The dispatcher chooses the service (planner and groups) for a tablet.
3. The planner turns candidates into jobs.
4. For a request, the selector has chosen the candidates before.

    planners      one module each
    dispatchers   the simple dispatcher
    selectors     which files a request takes
    controllers   how much compaction there is
    trackers      how many bytes a tablet's planner has still to rewrite
"""
