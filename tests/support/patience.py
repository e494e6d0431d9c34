"""How long tests wait for what must come.

No wait that succeeds proves how long something takes, since machines are shared and slow: a
bound is there only so that what never comes is told as a failure and not as a hanging run. So
bounds are wide, and the same everywhere.
"""

from __future__ import annotations

PATIENCE_S = 60.0
"""For what one process does by itself."""
SERVICE_S = 400.0
"""For what several processes do together, starts of Java and of Ray's workers among it."""
