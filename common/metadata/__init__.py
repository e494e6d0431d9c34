"""The stores: ports, changes as values, pure predicates, and adapters over Redis and memory."""
