"""How many compactors a compaction group should have. Pure; the shell starts and drains them.

Reading order:

    demand  what a group has to do, and how many compactors that takes
    memory  what a decision needs of those before it; starts that succeed, fail and pause
    policy  when compactors are started and drained, one decision per snapshot
    rate    how fast a compactor rewrites, measured
"""
