"""Status and settings of the service."""

from neve.api import (
    Notifications,
    NotificationTest,
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

    def notifications(self) -> Notifications:
        """Return the targets of notifications, their queues, and the conditions that last."""
        return decode(Notifications, self._connection.call("GET", "/v1/notifications"))

    def test_notifications(self) -> list[NotificationTest]:
        """Send a test message to each target, once; return which of them took it."""
        answer = self._connection.call("POST", "/v1/notifications/test")
        return decode_list(NotificationTest, answer, "targets")
