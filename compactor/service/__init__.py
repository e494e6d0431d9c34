"""The compactor's shell: asyncio, the only code here that waits.

    compactor        takes jobs, sends heartbeats, drains, leaves
    attempt_runner   performs the actions of one attempt
    table_storage    who owns a table's location; deletes failed outputs

The flow: (1) `compactor` takes an assignment. (2) `attempt_runner` has the engine rewrite it.
(3) It commits the outputs to the store. (4) It reports the end, and the slot is free again.
"""

from compactor.service.compactor import CompactorService

__all__ = ["CompactorService"]
