"""Status and settings of the service."""

from neve.api import (
    Setting,
    Status,
)
from neve.client.http import Connection, decode, decode_list


class ServiceCalls:
    """Client methods for the service as a whole."""

    _connection: Connection

    def status(self) -> Status:
        """Return the status of the service as a whole."""
        return decode(Status, self._connection.call("GET", "/v1/status"))

    def config(self) -> list[Setting]:
        """Return all settings of the running service, with the source of each value."""
        return decode_list(Setting, self._connection.call("GET", "/v1/config"), "settings")
