"""Die with the parent: no process of ours goes on when nobody wants its work."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; on Linux only.

    Args:
        parent: The parent's process id; if it is gone already, this process ends here.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before we asked.
    if os.getppid() != parent:
        os._exit(1)
