"""The stores: ports, changes as values, pure predicates, and adapters over Redis and memory.

ports         `TabletStore`: what the rest of the system may ask
changes       every change, as a value          predicates   what is allowed
mutation      change → watches, reads, decision, effects, mark (pure)
executor      tries a transaction until it is settled
keyspace      port under it;  memory, flaky, redis: who satisfies it
store         `TabletStore` over any keyspace;  reading, ranges, tiles: its reads
keys, codec*  names and bytes of everything stored
"""

from common.metadata.ports import TabletStore

__all__ = ["TabletStore"]
