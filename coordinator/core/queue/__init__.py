"""The bounded queue of each compaction group.

1. A plan replaces a tablet's jobs in all queues: `JobQueues.replace`.
2. `admission` computes the rank and weight of each job; a full queue sheds the lowest ranks.
3. `fair_share` chooses the class, and the table within a class, that gets the next turn.
4. `backfill` takes the next job that fits into the capacity left by the running jobs.

    job_queue     the queue of one group, and the queues of all groups
    admission     rank, weight, and the answers to an offer
    job_index     jobs by rank, id, tablet and turn
    fair_share    turns of classes and tables
    backfill      the capacity in use, and the jobs that still fit
"""
