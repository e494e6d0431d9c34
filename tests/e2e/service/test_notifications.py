"""Operators of a running service are notified, also while its parts are silent."""

from __future__ import annotations

import psutil
import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.message_receivers import WebhookReceiver
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]


def sent(hook: WebhookReceiver, kind: str, state: str) -> list[str]:
    """Return the titles of the messages of a kind and state."""
    messages = hook.documents
    return [
        message["title"]
        for message in messages
        if (message["kind"], message["state"]) == (kind, state)
    ]


def test_a_test_message_and_the_end_of_a_request(service: Service, hook: WebhookReceiver) -> None:
    address = {"NEVE_URL": service.stack.gateway_url, "NEVE_TOKEN": service.stack.token}
    neve = Shell(service.folder / "home", **address)
    neve.run("notify", "--test", says="webhook: the test message was accepted")
    assert sent(hook, "test", "test") == ["[neve] test message"]
    table = LedgerTable(service.client, service.folder, keyed=True, stem="notified")
    for version in range(2):
        table.append(keyed_rows(range(100), version))
    service.client.compact(table.name).wait()
    title = f"[neve] 1 request of table {table.name} done"
    service.wait("a message", lambda: title in sent(hook, "request-done", "event"))
    shown = neve.json("config", "show")["settings"]
    values = {setting["name"]: setting["value"] for setting in shown}
    assert values["notify.webhook_url"] == "(set, not shown)"
    assert "of-the-address" not in str(shown)
    service.client.drop(table.name, delete_files=True)


def test_a_silent_coordinator_is_one_message_though_the_gateway_dies_meanwhile(
    service: Service, hook: WebhookReceiver
) -> None:
    kind = "coordinator-silent"
    before = len(sent(hook, kind, "begun"))
    with service.halted(service.actor("CoordinatorActor")):
        service.wait("a message", lambda: len(sent(hook, kind, "begun")) > before)
        service.kill(service.actor("GatewayActor"))
        service.wait("another gateway", lambda: service.client.notifications().standing)
    over = len(sent(hook, kind, "ended"))
    service.wait("its end", lambda: len(sent(hook, kind, "ended")) > over)
    assert len(sent(hook, kind, "begun")) == before + 1


def test_a_silent_store_is_notified_without_it(service: Service, hook: WebhookReceiver) -> None:
    kind = "store-silent"
    redis = [process for process in service.processes() if is_redis(process)]
    assert redis
    with service.halted(*redis):
        service.wait("a message", lambda: sent(hook, kind, "begun"))
    service.wait("its end", lambda: sent(hook, kind, "ended"))
    assert sent(hook, kind, "begun") == ["[neve] the metadata store does not answer"]


def is_redis(process: psutil.Process) -> bool:
    """Return whether a process is the metadata store."""
    name = process.name()
    return "redis-server" in name or "valkey" in name
