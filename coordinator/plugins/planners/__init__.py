"""Built-in planners, one module each; entry point group `neve.planners`.

A planner is asked for one tablet at a time:

    ratio         merges sets of files that are large compared with their largest
    bin_pack      fills files up to a target size and leaves files of about that size alone
    budgeted      spends a fixed number of bytes where it lowers the most overlap
    delta         merges updates among themselves, and into their base when there are enough
    log_segment   copies what is live in a range of segments, and frees whole segments
    size_tiered   merges files of about the same size
    time_window   merges the files of each window of time to one, and drops what has expired
    time_chunk    brings each hour, day or week to few files, cut where it ends
    leveled       keeps files in levels, within which they do not overlap

    packing         bins, gain and cost: what planners share that go by a target size
    segments        ranges of segments, what they cost and free; pauses and periods
    tiers           buckets and picks: what planners share that go by tiers
    key_cuts        keys at which outputs are cut to about the same size
    chunks          time lines, scores and tasks: the notes that time_chunk is made of
    chunk_policies  which chunks may be compacted, and in which order
"""
