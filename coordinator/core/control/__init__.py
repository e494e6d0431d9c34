"""The control loop: how much compaction runs, and how it is divided. Pure; ticked in turns.

1. Every `control.period_s`, a tick collects the state of the cluster: backlog, slots, work done.
2. `loop` turns it into readings, calls the controller, and records the decision.
3. `guard` bounds the decision: how fast shares change, and how far the rate drops for readers.
4. The decision is enforced by the queues (shares), by assignment and autoscaler (slots), and by
   grants (bytes per second).

    loop          readings, decision, history
    guard         slew limit, hysteresis, reader latency, and the minimum rate
    measurements  rates of work, read latencies, bytes by class
    pressure      overlapping files where work waits, and garbage
"""
