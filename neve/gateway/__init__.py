"""The gateway: HTTP in front of the store and the coordinator.

`create_app` makes the application out of ports; `neve.gateway.actor` runs it as a Ray
actor. It decides nothing about compaction: it checks what comes in, writes changes
as values, and tells what it reads.
"""
