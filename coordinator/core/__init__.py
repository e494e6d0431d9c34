"""Decisions of the coordinator. Code here does no I/O and uses no clock, randomness or log.

1. An `events` value arrives at `state.handle` with the current time.
2. The module for this kind of event decides: `plan_events`, `assignment`, `attempt_events`,
   or the timers of `state`. All of them change one `ClusterState`.
3. `assignment` gives the best jobs of the `queue` to waiting compactors.
4. `actions` go out. The shell performs them, and each answer is another event.

    events          what has happened
    actions         what the shell has to do
    limits          all bounds and timeouts
    state           `CoordinatorState.handle`, and what time alone causes
    plan_events     plans arrive, with the current state of tables and tablets
    assignment      from a take to an assignment; where a decision of the controller applies
    attempt_events  attempts are found in the store, end, are taken back; compactors come and go
    cluster_state   all state, each part in the class that owns it
    attempts        all attempts in progress, the living compactors, and their takes
    queue           the bounded queue of each group: rank, weight, and what still fits
    queue_index     jobs by rank, id, tablet and turn; turns of classes and tables
    throttle        bytes per second: limits, shares, grants
    control         how much compaction runs: readings, guard, decision
    autoscaling     how many compactors a group should have
    retry           pauses, quarantine, crash history, tablets to plan again later
    windows         which system jobs may start now, by the windows of tables and groups
    planning        from a tablet to its plan; the jobs that cut files at a split key
    shadow          a planner whose jobs never start, compared with the table's own
    backlog         bytes still to rewrite, reduced by running work
    series          recorded values of the last hour and day, in one bounded memory
    maintenance     possible operations in a tablet, their value, and the tablet's load
    triggers        when the planner of a table is asked, and what it decided
    scans           what a full scan reads; settled versions; how long replaced files stay
    requests        the next step of a request
    split_merge     the next step of a split or merge, and where to split
    views           data for people and metrics; what is recorded
    story           the history of each tablet, kept for explanations
"""
