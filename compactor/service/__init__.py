"""The compactor's shell: asyncio, the only code here that waits.

compactor.py   takes jobs, tells the coordinator that it lives, drains, leaves
attempts.py    performs what one attempt's state machine asks for
"""

from compactor.service.compactor import CompactorService

__all__ = ["CompactorService"]
