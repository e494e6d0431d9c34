"""How many compactors a compaction group should have. Pure; the shell starts and drains them.

Reading order:

    demand  the work of a group, and how many compactors it needs
    memory  state kept between decisions; starts that succeed, fail and pause
    policy  when compactors are started and drained, one decision per snapshot
    rate    measured rewrite rate of a compactor
"""
