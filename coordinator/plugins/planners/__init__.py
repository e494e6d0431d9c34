"""Built-in planners, one module each; entry point group `neve.planners`.

A planner plans one tablet at a time:

    ratio         merges sets of files that are large compared to their largest file
    bin_pack      merges files up to a target size and keeps files near that size
    budgeted      spends a fixed byte budget where it reduces overlap most
    delta         merges updates with each other, and into their base when there are enough
    log_segment   copies the live records of a range of segments, and frees whole segments
    size_tiered   merges files of about the same size; buckets and picks of all tiers
    time_window   merges the files of each time window into one, and drops expired files
    time_chunk    merges the files of each hour, day or week, and cuts files at its end
    leveled       keeps files in levels without overlap within a level
    unified       merges files of a level of density where enough overlap; has its own tracker

    packing         bins, gain, cost, and keys that divide outputs; shared by planners
    segments        ranges of segments with cost and benefit; pauses and periods
    chunks          timelines, scores, tasks, and the order of chunks; used by time_chunk
"""
