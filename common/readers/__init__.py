"""Reader processes: files and streams of others are opened in them, and nowhere else.

Bytes that somebody else wrote can end the process that decodes them, fill its memory or keep
it busy for ever. So the gateway and the coordinator let processes of their own look into them,
each with a limit of memory and time, and lose one of these instead of themselves.

    gateway, coordinator: a thread calls a function that is marked `@in_reader`
        └─ order over a socket pair ──► reader: does it, answers
        │                                  ▲ fork, a few ms
        └─ control link ──► nursery: has imported all that readers need

* `door`: marks such functions, and says which readers a process has
* `pool`: `Readers`: who is idle, what a death means
* `nursery`: starts and ends readers, from the side of the service
* `child`: the nursery's own process, and what a reader does
* `frames`: messages over a socket
* `answers`: what a reader may answer with: values of known kinds, never code
"""
