"""The compactor's shell: asyncio, and the only code of the compactor that waits.

    compactor        takes jobs, sends heartbeats, drains, leaves
    attempt_runner   performs the actions of one attempt
    table_storage    checks the owner of a table's location; deletes failed outputs

The flow: (1) `compactor` takes an assignment. (2) `attempt_runner` makes the engine rewrite it.
(3) It commits the outputs to the store. (4) It reports the outcome, and the slot is free again.
"""

from compactor.service.compactor import CompactorService

__all__ = ["CompactorService"]
