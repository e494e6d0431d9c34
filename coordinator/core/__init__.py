"""Decisions of the coordinator: no I/O, no clock, no chance, no logging in here.

1. Something happened: an `events` value comes in, with the time, by `state.handle`.
2. The decider of its family answers: `plan_events`, `assignment`, `compactor_events`,
   `attempt_events`, or the timers of `state`. All of them change one `ClusterState`.
3. `assignment` gives waiting compactors the best jobs of their `queue`.
4. `actions` go out; the shell performs them, and each answer is an event again.

    events             what has happened
    actions            what shall be done
    limits             every bound and patience
    state              `CoordinatorState.handle`, and what follows from time alone
    plan_events        plans come in, and with them what is known of tables and tablets
    assignment         from a take to an assignment
    compactor_events   compactors appear, send heartbeats, drain, fall silent and disappear
    attempt_events     attempts are found in the store, end, and are taken back
    cluster_state      everything that is known, by the class that owns it
    attempts           the life of an attempt, and all that are not over
    compactors         the living compactors, and their takes
    queue              the bounded queues of jobs, and who may pass whom
    throttle           bytes per second: limits, shares, grants
    control            how much compaction there is now: readings, guard, decision
    enforcement        where a decision holds: queues, slots, grants
    autoscaling        how many compactors a group should have
    retry              pauses, quarantine, crash history
    deferral           tablets to be planned again, when there is room or at a time
    planning           from a tablet to its plan
    backlog            how much is still to be rewritten, and what runs taken off
    maintenance        what could be done in a tablet, what it is worth, how busy the tablet is
    triggers           when the planner of a table is asked, and what it decided
    scan_rules         what a full scan reads, and when a quiet tablet is read again
    version_watermark  since when a tablet has held everything up to a version
    file_retention     how long replaced files stay, and when a manifest is published anew
    requests           what a request does next
    split_merge        what a split or merge does next
    views              what people and metrics are shown
    story              what has happened to each tablet, kept to explain it afterwards
"""
