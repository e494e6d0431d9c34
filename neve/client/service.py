"""Status and settings of the service."""

from __future__ import annotations

from neve import api
from neve.client.http import Connection, decode, decode_list


class ServiceCalls:
    """Client methods for the service as a whole."""

    _connection: Connection

    def status(self) -> api.Status:
        """Return the status of the service as a whole."""
        return decode(api.Status, self._connection.call("GET", "/v1/status"))

    def config(self) -> list[api.Setting]:
        """Return all settings of the running service, with the source of each value."""
        return decode_list(api.Setting, self._connection.call("GET", "/v1/config"), "settings")

    def notifications(self) -> api.Notifications:
        """Return the targets of notifications, their queues, and the conditions that last."""
        return decode(api.Notifications, self._connection.call("GET", "/v1/notifications"))

    def test_notifications(self) -> list[api.NotificationTest]:
        """Send a test message to each target, once; return which of them took it."""
        answer = self._connection.call("POST", "/v1/notifications/test")
        return decode_list(api.NotificationTest, answer, "targets")
