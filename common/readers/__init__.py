"""Reader processes: untrusted files and streams are opened only in them.

Untrusted bytes can crash the process that decodes them, fill its memory or keep it busy for ever.
So the gateway and the coordinator open them in separate processes, each with a limit of memory
and time. An attack then ends such a process instead of the service.

    gateway, coordinator: a thread calls a function that is marked `@in_reader`
        └─ order over a socket pair ──► reader: executes it, answers
        │                                  ▲ fork, a few ms
        └─ orders ──► fork server: has imported all that readers need

    messages     limits, frames, orders and answers: values of known kinds, never code
    fork_server  the process that forks readers, and the work of a reader
    pool         readers of a service: start, assign work, end; `@in_reader`
"""
