"""Called by `ray start` in its own process: leave out what one machine does not need.

Ray starts a server for its remote client on every head. Nothing here uses it, and it
costs 90 MB. If a later Ray no longer calls the hook, only that server is back.
"""

from typing import Any


def adjust(ray_params: Any, head: bool) -> None:
    """Leave out the client server.

    Args:
        ray_params: Ray's start parameters, changed in place.
        head: Whether a head is started.
    """
    if head:
        ray_params.ray_client_server_port = None
