"""Built-in plug-ins. They use the same interface as third-party plug-ins and import only `common`.

1. `registry` loads plug-ins by name; it treats built-in plug-ins like any other.
2. The dispatcher chooses the service (planner and groups) for a tablet.
3. The planner turns candidates into jobs.
4. For a request, the selector chooses the candidates before the planner runs.

    planners      one module each
    dispatchers   the simple dispatcher
    selectors     which files a request compacts
    controllers   what share of the resources compaction may use
    trackers      how many bytes a tablet's planner still has to rewrite
"""
