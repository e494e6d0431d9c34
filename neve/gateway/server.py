"""The HTTP server of the application: uvicorn, and how long it waits for whom."""

import uvicorn

from neve.gateway.app import create_app
from neve.gateway.connections import BACKLOG, Connections, connections_max
from neve.gateway.services import Services

DRAIN_MAX_S = 5
"""How long requests under way may still take when the server ends."""


def server_of(services: Services) -> uvicorn.Server:
    """Return the server of a gateway, which does not serve yet.

    Args:
        services: Ports and settings; the token must not be empty.
    """
    gateway = services.settings.gateway
    most = connections_max(gateway.connections_max)
    connections = Connections(most, gateway.head_wait_s, gateway.answer_wait_s, services.log)
    return uvicorn.Server(
        uvicorn.Config(
            create_app(services),
            host=gateway.host,
            port=gateway.port,
            http=connections.protocol(),
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_MAX_S,
        )
    )
