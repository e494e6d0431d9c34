"""Reader processes: files and streams of others are opened in them, and nowhere else.

Bytes that somebody else wrote can end the process that decodes them, fill its memory or keep
it busy for ever. So the gateway and the coordinator let processes of their own look into them,
each with a limit of memory and time, and lose one of these instead of themselves.

    gateway, coordinator: a thread calls a function that is marked `@in_reader`
        └─ order over a socket pair ──► reader: does it, answers
        │                                  ▲ fork, a few ms
        └─ control link ──► fork server: has imported all that readers need

    messages     limits, frames, orders and answers: values of known kinds, never code
    fork_server  the process that readers are forked from, and what a reader does
    pool         readers of a service: started, given work, ended; `@in_reader`
"""
