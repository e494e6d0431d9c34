"""The bounded queue of each compaction group.

1. A plan replaces a tablet's jobs in all queues: `JobQueues.replace`.
2. `admission` gives each job its rank and weight; a full queue sheds what ranks lowest.
3. `fair_share` says which table's turn it is among jobs of one class.
4. `backfill` takes the next job that fits beside what is under way.

    job_queue     the queue of one group, and the queues of all
    admission     rank, weight, and the answers to an offer
    job_index     jobs by rank, by id, by tablet, by table's turn
    fair_share    whose turn it is among tables
    backfill      how much is under way, and who may start beside it
"""
