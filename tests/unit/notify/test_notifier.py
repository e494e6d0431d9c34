"""A gateway notifies operators through a real HTTP server and a real mail server."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.control_settings import NotifySettings
from common.errors import ConfigError, SettingError, UnavailableError
from common.metadata.keys import NOTIFIED
from common.runtime import SystemClock
from common.wire import Condition, RequestEnds
from neve.client import Client
from neve.gateway.notify.notifier import Webhook, signature, targets_of
from tests.support.certificates import Authority
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.memory_store import MemoryStore
from tests.support.message_receivers import MailServer, mail_server, webhook_receiver
from tests.support.patience import PATIENCE_S
from tests.support.shell import Shell

pytestmark = pytest.mark.unit

KEY, PASSWORD = "key-of-the-webhook", "pass word-of-the-mail"
QUICK = {"gather_s": 0.1, "calm_s": 0.3, "silent_after_s": 0.1, "backlog_after_s": 0.1}


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for an answer that is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not (answer := true()):
        assert time.monotonic() < end_s, f"in vain: {what}"
        time.sleep(0.02)
    return answer


def secret(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"{text}\n")
    return str(path)


def hook_settings(folder: Path, url: str, **more: object) -> dict[str, object]:
    key = secret(folder, "key", KEY)
    return {"webhook_url": url, "webhook_key_file": key, **QUICK, **more}


def mail_settings(folder: Path, server: MailServer, authority: str) -> dict[str, object]:
    return {
        "email_to": ("ops@x.test", "night@x.test"),
        "email_from": "neve@x.test",
        "smtp_host": "localhost",
        "smtp_port": server.port,
        "smtp_tls": "tls" if server.implicit else "starttls",
        "smtp_user": "neve",
        "smtp_password_file": secret(folder, "password", PASSWORD),
        "smtp_authorities": authority,
        **QUICK,
    }


def quarantined(count: int, table: str = "trips") -> Condition:
    return Condition(kind="quarantined", subject=table, count=count, text="it failed 5 times")


def shows_no_secret(gateway: Gateway, client: Client) -> None:
    shown = [json.dumps(gateway.log, default=str), repr(client.config()), repr(client.status())]
    shown += [repr(client.notifications()), repr(client.audit(1000))]
    for text in shown:
        for hidden in (KEY, PASSWORD, "of-the-address"):
            assert hidden not in text


def test_a_webhook_gets_one_signed_message_for_many_tablets_and_one_when_it_is_over(
    tmp_path: Path,
) -> None:
    with webhook_receiver() as hook, serving(notify=hook_settings(tmp_path, hook.url)) as gateway:
        gateway.coordinator.conditions = (quarantined(10_000),)
        until(lambda: hook.calls, "a message")
        gateway.coordinator.conditions = (quarantined(10_001),)
        with gateway.client() as client:
            until(lambda: client.notifications().standing[0].count == 10_001, "another tablet")
            (standing,) = client.notifications().standing
            assert (standing.kind, standing.subject) == ("quarantined", "trips")
            shows_no_secret(gateway, client)
        gateway.coordinator.conditions = ()
        until(lambda: len(hook.calls) == 2, "the message that it is over")
        begun, over = hook.documents
        assert begun["title"] == "[neve] 10,000 tablets of table trips in quarantine"
        assert (begun["kind"], begun["state"], begun["count"]) == ("quarantined", "begun", 10_000)
        assert (over["state"], over["count"]) == ("ended", 10_001)
        call = hook.calls[0]
        assert call.path == "/hook?token=of-the-address"
        assert call.headers["Neve-Message"] == begun["id"] != over["id"]
        at, _, given = call.headers["Neve-Signature"].partition(",v1=")
        at_s = int(at.removeprefix("t="))
        signed = f"{at_s}.".encode() + call.body
        assert given == hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
        assert abs(at_s - time.time()) < 600
        assert call.headers["Neve-Signature"] == signature(KEY.encode(), at_s, call.body)


def test_a_message_is_repeated_until_the_receiver_takes_it(tmp_path: Path) -> None:
    with webhook_receiver() as hook, serving(notify=hook_settings(tmp_path, hook.url)) as gateway:
        hook.statuses = [503, 429]
        gateway.coordinator.conditions = (quarantined(1),)
        until(lambda: hook.calls, "a message")
        assert len(hook.documents) == 1
        with gateway.client() as client:
            until(lambda: not client.notifications().targets[0].waiting, "an empty queue")
            (target,) = client.notifications().targets
        assert (target.name, target.sent, target.dropped, target.failure) == ("webhook", 1, 0, "")
        retried = [fields for event, fields in gateway.log if event == "message is retried"]
        causes = [fields["cause"] for fields in retried]
        assert causes == [f"127.0.0.1 answered with status {status}" for status in (503, 429)]


def test_a_message_that_is_refused_for_good_is_dropped(tmp_path: Path) -> None:
    with webhook_receiver() as hook, serving(notify=hook_settings(tmp_path, hook.url)) as gateway:
        hook.statuses = [400]
        gateway.coordinator.conditions = (quarantined(1),)
        with gateway.client() as client:
            until(lambda: client.notifications().targets[0].dropped, "a refusal")
        gateway.coordinator.conditions = (quarantined(1), quarantined(2, "rides"))
        until(lambda: hook.calls, "the next message")
        assert [document["subject"] for document in hook.documents] == ["rides"]


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with webhook_receiver() as other, webhook_receiver() as hook:
        hook.statuses, hook.location = [307], other.url
        with (
            serving(notify=hook_settings(tmp_path, hook.url)) as gateway,
            gateway.client() as client,
        ):
            (result,) = client.test_notifications()
        assert result.failure == "127.0.0.1 answered with status 307"
        assert (hook.calls, other.calls) == ([], [])


def test_a_proxy_of_the_environment_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook_receiver() as proxy, webhook_receiver() as hook:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with (
            serving(notify=hook_settings(tmp_path, hook.url)) as gateway,
            gateway.client() as client,
        ):
            (result,) = client.test_notifications()
        assert (result.failure, len(hook.calls), proxy.calls) == ("", 1, [])


def test_https_is_checked_against_the_authorities_of_the_settings(tmp_path: Path) -> None:
    authority = Authority("ours")
    certificate = authority.issue(tmp_path / "server.pem")
    trusted = authority.write(tmp_path / "ours.pem")
    foreign = Authority("another").write(tmp_path / "another.pem")
    with webhook_receiver(certificate) as hook:
        results = []
        for file in (trusted, foreign):
            notify = hook_settings(tmp_path, hook.url, webhook_authorities=file)
            with serving(notify=notify) as gateway, gateway.client() as client:
                results += client.test_notifications()
        assert [len(hook.calls), results[0].failure] == [1, ""]
        assert "certificate verify failed" in results[1].failure
        assert "of-the-address" not in results[1].failure


@pytest.mark.parametrize("implicit", [False, True])
def test_an_e_mail_is_sent_over_tls_after_a_login(tmp_path: Path, implicit: bool) -> None:
    authority = Authority("ours")
    certificate = authority.issue(tmp_path / "server.pem")
    trusted = authority.write(tmp_path / "ours.pem")
    with mail_server(certificate, implicit=implicit, login=("neve", PASSWORD)) as server:
        notify = mail_settings(tmp_path, server, trusted)
        with serving(notify=notify) as gateway, gateway.client() as client:
            gateway.coordinator.conditions = (
                Condition(kind="shed", subject="small", count=12, text="the queue is full"),
            )
            until(lambda: server.mails, "an e-mail")
            shows_no_secret(gateway, client)
        (recipients, mail), *_ = server.mails
        assert recipients == ["ops@x.test", "night@x.test"]
        assert mail["From"] == "neve@x.test"
        assert mail["Subject"] == "[neve] queue of group small is full, 12 tablets deferred"
        assert "the queue is full" in mail.get_content()
        plain = b"".join(server.plain).upper()
        assert b"AUTH" not in plain
        assert b"MAIL" not in plain


def test_an_e_mail_is_retried_after_a_refusal_for_now_and_a_wrong_password(tmp_path: Path) -> None:
    authority = Authority("ours")
    certificate = authority.issue(tmp_path / "server.pem")
    trusted = authority.write(tmp_path / "ours.pem")
    with mail_server(certificate, login=("neve", PASSWORD)) as server:
        notify = mail_settings(tmp_path, server, trusted)
        secret(tmp_path, "password", "a wrong one")
        server.codes = [451]
        with serving(notify=notify) as gateway, gateway.client() as client:
            gateway.coordinator.conditions = (quarantined(1),)
            until(lambda: client.notifications().targets[0].failure, "a refusal")
            assert client.notifications().targets[0].failure.endswith("answered with code 535")
            secret(tmp_path, "password", PASSWORD)
            until(lambda: server.mails, "an e-mail")
            log = json.dumps(gateway.log, default=str)
            assert "answered with code 451" in log
            assert "wrong one" not in log


def test_no_e_mail_is_sent_to_a_server_that_is_not_trusted(tmp_path: Path) -> None:
    certificate = Authority("ours").issue(tmp_path / "server.pem")
    foreign = Authority("another").write(tmp_path / "another.pem")
    with mail_server(certificate, login=("neve", PASSWORD)) as server:
        notify = mail_settings(tmp_path, server, foreign)
        with serving(notify=notify) as gateway, gateway.client() as client:
            (result,) = client.test_notifications()
        assert "certificate verify failed" in result.failure
        assert server.mails == []


class SilentStore(MemoryStore):
    """A store that does not answer while it is told so."""

    silent = False

    async def now_s(self) -> float:
        if self.silent:
            raise UnavailableError("the store does not answer")
        return await super().now_s()

    async def audit(self, count: int, kind: str = "") -> Any:
        await self.now_s()
        return await super().audit(count, kind)


def test_a_silent_store_and_a_silent_coordinator_are_notified_without_them(tmp_path: Path) -> None:
    store = SilentStore(SystemClock())
    store.silent = True
    with webhook_receiver() as hook:
        with serving(store, notify=hook_settings(tmp_path, hook.url)) as gateway:
            gateway.coordinator.up = False
            until(lambda: len(hook.calls) == 2, "two messages")
            assert {document["kind"] for document in hook.documents} == {
                "store-silent", "coordinator-silent",
            }  # fmt: skip
            gateway.coordinator.up = True
            until(lambda: len(hook.calls) == 3, "the coordinator is back")
            store.silent = False
            until(lambda: len(hook.calls) == 4, "the store is back")
        assert [(each["kind"], each["state"]) for each in hook.documents[2:]] == [
            ("coordinator-silent", "ended"),
            ("store-silent", "ended"),
        ]


def test_requests_that_end_are_notified(tmp_path: Path) -> None:
    with webhook_receiver() as hook, serving(notify=hook_settings(tmp_path, hook.url)) as gateway:

        def ended(done: int, failed: int) -> tuple[RequestEnds, ...]:
            return (
                RequestEnds(table="trips", state="done", count=done, request="r1"),
                RequestEnds(
                    table="trips", state="failed", count=failed, request="r2", cause="no column"
                ),
            )

        with gateway.client() as client:
            until(lambda: gateway.ask(gateway.store.audit(1, NOTIFIED)), "the first look")
            gateway.coordinator.request_ends = ended(1, 2)
            until(lambda: len(hook.calls) == 2, "two messages")
            assert client.notifications().standing == ()
        assert sorted(document["title"] for document in hook.documents) == [
            "[neve] 1 request of table trips done",
            "[neve] 2 requests of table trips failed",
        ]


@contextmanager
def restarted(
    store: MemoryStore, notify: dict[str, object], *conditions: Condition
) -> Iterator[Gateway]:
    with serving(store, notify=notify) as gateway:
        gateway.coordinator.conditions = conditions
        yield gateway


@pytest.mark.parametrize("place", ["store", "file"])
def test_nothing_is_repeated_after_a_restart(tmp_path: Path, place: str) -> None:
    file = tmp_path / "notified.json"
    with webhook_receiver() as hook:
        more = {"state_file": str(file)} if place == "file" else {}
        notify = hook_settings(tmp_path, hook.url, **more)
        store = SilentStore(SystemClock())
        with restarted(store, notify, quarantined(3)) as gateway, gateway.client() as client:
            until(lambda: hook.calls, "a message")
            until(lambda: not client.notifications().targets[0].waiting, "an empty queue")
            until(lambda: gateway.ask(store.audit(1, NOTIFIED)), "the store remembers")
        if place == "file":
            assert file.stat().st_mode & 0o777 == 0o600
            assert KEY not in file.read_text()
            # Another store, and it is silent: only the file remembers.
            store = SilentStore(SystemClock())
            store.silent = True
        more_conditions = (quarantined(3), quarantined(1, "rides"))
        with restarted(store, notify, *more_conditions) as gateway:
            until(lambda: any(d["subject"] == "rides" for d in hook.documents), "the next one")
            store.silent = False
            gateway.coordinator.conditions = (quarantined(1, "rides"),)
            until(lambda: hook.documents[-1]["state"] == "ended", "the end of the first")
        told = [(each["subject"], each["state"]) for each in hook.documents if each["subject"]]
        assert told == [("trips", "begun"), ("rides", "begun"), ("trips", "ended")]


def test_what_waits_for_a_receiver_is_sent_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    with webhook_receiver() as hook:
        notify = hook_settings(tmp_path, hook.url)
        hook.statuses = [503] * 50
        with restarted(store, notify, quarantined(3)) as gateway, gateway.client() as client:
            until(lambda: client.notifications().targets[0].failure, "a failure")
            waiting = until(lambda: gateway.ask(store.audit(1, NOTIFIED)), "it is kept")
            until(lambda: b"trips" in gateway.ask(store.audit(1, NOTIFIED))[0], "the message")  # type: ignore[index]  # lines
            assert waiting
        hook.statuses = []
        with restarted(store, notify, quarantined(3)):
            until(lambda: hook.calls, "the message")
        assert [document["state"] for document in hook.documents] == ["begun"]


def test_the_command_line_sends_a_test_and_shows_targets(tmp_path: Path) -> None:
    with webhook_receiver() as hook, serving(notify=hook_settings(tmp_path, hook.url)) as gateway:
        neve = Shell(tmp_path, NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
        neve.run("notify", "--test", says="webhook: the test message was accepted")
        assert hook.documents[0]["kind"] == hook.documents[0]["state"] == "test"
        hook.statuses = [404]
        neve.run("notify", "--test", code=1, says="webhook: 127.0.0.1 answered with status 404")
        neve.run("notify", says="webhook 0 0 0")
    with serving() as gateway:
        neve = Shell(tmp_path, NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
        neve.run("notify", "--test", code=1, says="there is no target")


@pytest.mark.parametrize(
    "url", ["http://hooks.test/of-the-address", "http://10.0.0.1/of-the-address"]
)
def test_an_address_that_is_not_safe_stops_the_start(tmp_path: Path, url: str) -> None:
    rules = NotifySettings(**hook_settings(tmp_path, url))  # type: ignore[arg-type]  # by name
    with pytest.raises(SettingError, match=r"expected https://") as refused:
        Webhook(rules, SystemClock())
    assert "of-the-address" not in str(refused.value)


def test_a_secret_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    settings = {**hook_settings(tmp_path, "https://hooks.test/x"), "webhook_key_file": "/none"}
    with pytest.raises(ConfigError, match=r"notify\.webhook_key_file: /none cannot be read"):
        targets_of(NotifySettings(**settings), SystemClock())  # type: ignore[arg-type]  # by name
