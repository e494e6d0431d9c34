"""Does the loop of control close on a real stack, and does the simulator foretell it?

    capacity   a saturated stack: bytes of arrivals per second that are really worked off
    runs       arrivals at 20, 50 and 80 % of that, each with a burst, for each controller
    simulated  the same arrivals, capacity and controllers in `neve simulate`
    figures    times to return, scans against the idle stack, agreement of the two; a picture

    schedule   when how much arrives
    stack      the stack, its writer, its reader, and samples of both
    capacity   the saturated phase
    simulated  the specification, and its backlog over time
    figures    what came of it, as text
    picture    as SVG

`python -m benchmarks.closed_loop` runs all of it; `--help` tells the steps.
"""
