"""How much compaction there is now, and who gets it. Pure; ticked in turns of the core.

1. Every `control.period_s` a tick collects what the cluster shows: backlog, slots, work done.
2. `loop` makes readings of it, asks the controller, and remembers what was decided.
3. `guard` bounds the decision: how fast shares move, and how far the rate falls for readers.
4. The decision is enforced on the queues (shares), on hand-out and autoscaler (slots), and on
   grants (bytes per second).

    loop          readings, decision, history
    guard         slew limit, hysteresis, readers' latency, and the floor below which nothing falls
    measurements  rates of work, waits of readers, bytes of each class
    pressure      files that overlap where work waits, and garbage
"""
