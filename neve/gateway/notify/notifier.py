"""Looks at the service, sends messages to the targets of the settings, and remembers them.

Targets come from the settings alone: one webhook and one mail server. A message waits in the queue
of each target until it is delivered, refused for good, or too old. What was sent is kept in a file
and in the store, so that a restarted gateway repeats nothing; the file also helps while the store
is silent. Secrets are read from their files for each delivery, and are in no log and no error.
"""

import asyncio
import hashlib
import hmac
import json
import smtplib
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import urlsplit

from common.config import regular_text, secret_of
from common.control_settings import NotifySettings
from common.errors import (
    CompactionError,
    ConfigError,
    SettingError,
    UnavailableError,
    first_line,
    redacted,
)
from common.metadata.keys import NOTIFIED
from common.metadata.store import TabletStore
from common.runtime import Clock, IdSource
from common.telemetry import Log
from common.wire import Condition, Notices
from neve import api
from neve.api.files import write_private
from neve.gateway.notify.messages import SILENT, Conditions, Message, message_of_test
from neve.gateway.store_watch import StoreWatch

LOOK_INTERVAL_S = 2.0
"""Longest interval between looks; shorter if `notify.gather_s` is."""
SEND_WAIT_S = 20.0
QUEUE_MAX = 200
"""Messages that wait for a target; beyond it, the oldest is dropped."""
RETRY_BASE_S, RETRY_MAX_S, AGE_MAX_S = 1.0, 300.0, 6 * 3600.0
"""Pauses between tries double from the base to the maximum; an older message is dropped."""
STATE_BYTES_MAX = 4 * 1024**2
ANSWER_BYTES_MAX = 4096
REMEMBERED = 1
"""Entries that the store keeps."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SIGNATURE_HEADER, ID_HEADER = "Neve-Signature", "Neve-Message"


class RefusedForGoodError(Exception):
    """A target has refused a message, and would refuse it again."""


class Coordinator(Protocol):
    """What a notifier asks the coordinator."""

    async def notices(self) -> Notices:
        """Return what operators may be notified of."""
        ...

    async def edition(self) -> str:
        """Answer, in any release."""
        ...


# ----------------------------------------------------------------------------------------- Targets


def signature(key: bytes, at_s: int, body: bytes) -> str:
    """Return the signature of a webhook's body: `t=TIME,v1=HMAC`, over `TIME.BODY`."""
    digest = hmac.new(key, b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def _tls(authorities: str, setting: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"setting notify.{setting} names {authorities}, which cannot be read: {error}"
        ) from error


class Webhook:
    """Posts messages as JSON to the one address of the settings."""

    name = "webhook"

    def __init__(self, rules: NotifySettings, clock: Clock) -> None:
        """Read the address and check it.

        Raises:
            ConfigError: The address is unusable, or a file cannot be read.
        """
        self._rules, self._clock = rules, clock
        url = secret_of("notify.webhook_url", rules.webhook_url, rules.webhook_url_file)
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and parts.hostname in LOOPBACK
        if not parts.hostname or not (parts.scheme == "https" or is_local):
            # The address may hold a secret, so it is not shown.
            raise SettingError(
                "setting notify.webhook_url is (a secret), expected https://…, or http:// on this"
                " machine",
                "notify.webhook_url",
            )
        self._url, self._host = url, parts.hostname
        self._tls = _tls(rules.webhook_authorities, "webhook_authorities")
        self._key()

    def _key(self) -> bytes:
        return secret_of("notify.webhook_key", "", self._rules.webhook_key_file).encode()

    async def send(self, message: Message) -> None:
        """Deliver a message.

        Raises:
            UnavailableError: It was not delivered; another try may succeed.
            RefusedForGoodError: The receiver has refused it.
            ConfigError: The key cannot be read.
        """
        import httpx  # Here: few services have a webhook.

        body = json.dumps(asdict(message), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "neve",
            ID_HEADER: message.id,
            SIGNATURE_HEADER: signature(self._key(), int(self._clock.now_s()), body),
        }
        try:
            # Neither a proxy of the environment nor a redirect may choose another receiver.
            client = httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False)
            async with (
                asyncio.timeout(SEND_WAIT_S),
                client,
                client.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            cause = _cause(error).replace(self._url, "(address)")
            raise UnavailableError(f"{self._host} does not answer: {cause}") from None
        if 200 <= status < 300:
            return
        if status in (408, 425, 429) or status >= 500:
            raise UnavailableError(f"{self._host} answered with status {status}")
        raise RefusedForGoodError(f"{self._host} answered with status {status}")


class Mail:
    """Sends messages as e-mails through the one mail server of the settings, encrypted."""

    name = "e-mail"

    def __init__(self, rules: NotifySettings) -> None:
        """Check the settings.

        Raises:
            ConfigError: A file cannot be read.
        """
        self._rules = rules
        self._tls = _tls(rules.smtp_authorities, "smtp_authorities")
        self._password()

    def _password(self) -> str:
        return secret_of("notify.smtp_password", "", self._rules.smtp_password_file)

    async def send(self, message: Message) -> None:
        """Deliver a message.

        Raises:
            UnavailableError: It was not delivered; another try may succeed.
            RefusedForGoodError: The server has refused it.
            ConfigError: The password cannot be read.
        """
        await asyncio.to_thread(self._send, message)

    def _send(self, message: Message) -> None:
        rules, password = self._rules, self._password()
        try:
            with self._connected() as server:
                if rules.smtp_user:
                    server.login(rules.smtp_user, password)
                server.send_message(self._mail(message))
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            self._refused(min(codes, default=0))
        except smtplib.SMTPResponseException as error:
            self._refused(error.smtp_code)
        except (smtplib.SMTPException, OSError) as error:
            raise UnavailableError(f"{rules.smtp_host}: {_cause(error)}") from None

    def _refused(self, code: int) -> NoReturn:
        """Raise the error for a reply of the server, whose text may name accounts."""
        where = f"{self._rules.smtp_host} answered with code {code}"
        # A wrong password is put right by the operator, so it is tried again.
        if 500 <= code < 600 and code not in (530, 534, 535):
            raise RefusedForGoodError(where) from None
        raise UnavailableError(where) from None

    def _connected(self) -> smtplib.SMTP:
        rules = self._rules
        if rules.smtp_tls == "tls":
            return smtplib.SMTP_SSL(
                rules.smtp_host, rules.smtp_port, timeout=SEND_WAIT_S, context=self._tls
            )
        server = smtplib.SMTP(rules.smtp_host, rules.smtp_port, timeout=SEND_WAIT_S)
        try:
            server.starttls(context=self._tls)
        except BaseException:
            server.close()
            raise
        return server

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = " ".join(message.title.split())
        mail["From"] = self._rules.email_from
        mail["To"] = ", ".join(self._rules.email_to)
        mail["Date"] = formatdate(message.at_s)
        domain = self._rules.email_from.rpartition("@")[2].strip("> ") or "neve"
        mail["Message-ID"] = f"<{message.id}@{domain}>"
        mail.set_content(f"{message.title}\n\n{message.text}\n")
        return mail


def _cause(error: Exception) -> str:
    return redacted(first_line(error))


class MessageTarget(Protocol):
    """Where messages go."""

    @property
    def name(self) -> str:
        """Name for operators."""
        ...

    async def send(self, message: Message) -> None:
        """Deliver a message."""
        ...


def targets_of(rules: NotifySettings, clock: Clock) -> list[MessageTarget]:
    """Return the targets of the settings.

    Raises:
        ConfigError: A target cannot be used as it is set.
    """
    targets: list[MessageTarget] = []
    if rules.webhook_url or rules.webhook_url_file:
        targets.append(Webhook(rules, clock))
    if rules.email_to:
        targets.append(Mail(rules))
    return targets


# -------------------------------------------------------------------------------------------- Queue


@dataclass(slots=True)
class _Outbox:
    """The messages that wait for one target, oldest first."""

    target: MessageTarget
    messages: deque[Message] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    dropped: int = 0
    failure: str = ""
    """Why the last try failed; empty: it did not."""

    def put(self, message: Message) -> None:
        """Add a message."""
        self.messages.append(message)
        if len(self.messages) > QUEUE_MAX:
            self.messages.popleft()
            self.dropped += 1
        self.news.set()


class Notifier:
    """Notifies the operators of one service. For one event loop."""

    def __init__(
        self,
        rules: NotifySettings,
        watched: tuple[Coordinator, TabletStore, StoreWatch],
        clock: Clock,
        ids: IdSource,
        log: Log,
    ) -> None:
        """Create a notifier that has looked at nothing.

        Args:
            rules: The settings; without a target, it does nothing.
            watched: The coordinator, the store, and the watch over the store.
            clock: Source of the time.
            ids: Source of the ids of messages.
            log: Receives messages that are sent and those that are not.

        Raises:
            ConfigError: A target cannot be used as it is set.
        """
        self._rules, self._clock, self._ids, self._log = rules, clock, ids, log
        self._coordinator, self._store, self._watch = watched
        self._conditions = Conditions(rules)
        self._outboxes = [_Outbox(target) for target in targets_of(rules, clock)]
        self._saved = b""
        self._stored = b""
        self._is_loaded = False
        self._saving = asyncio.Lock()

    async def run_forever(self) -> None:
        """Look and deliver."""
        if not self._outboxes:
            return
        async with asyncio.TaskGroup() as tasks:
            for outbox in self._outboxes:
                tasks.create_task(self._deliver_forever(outbox))
            while True:
                await self._look()
                await asyncio.sleep(min(LOOK_INTERVAL_S, self._rules.gather_s))

    def state(self) -> api.Notifications:
        """Return the targets, with their queues, and the conditions that were notified."""
        standing = self._conditions.standing.values()
        return api.Notifications(
            targets=tuple(
                api.NotificationTarget(
                    name=outbox.target.name,
                    waiting=len(outbox.messages),
                    sent=outbox.sent,
                    dropped=outbox.dropped,
                    failure=outbox.failure,
                )
                for outbox in self._outboxes
            ),
            standing=tuple(
                api.StandingCondition(
                    kind=one.kind, subject=one.subject, since_s=one.since_s, count=one.count
                )
                for one in standing
                if one.is_sent
            ),
        )

    async def test(self) -> list[api.NotificationTest]:
        """Send a test message to each target at once, and return what became of it."""
        now_s = self._clock.now_s()
        name = self._rules.service_name
        message = message_of_test(now_s).addressed(self._ids.next("note"), name, now_s)
        return [await self._test(outbox.target, message) for outbox in self._outboxes]

    async def _test(self, target: MessageTarget, message: Message) -> api.NotificationTest:
        try:
            await target.send(message)
        except (CompactionError, RefusedForGoodError) as error:
            return api.NotificationTest(target=target.name, failure=str(error))
        return api.NotificationTest(target=target.name)

    # -------------------------------------------------------------------------------------- Looks

    async def _look(self) -> None:
        if not self._is_loaded:
            await self._load()
        found, unseen = await self._found()
        now_s = self._clock.now_s()
        due = self._conditions.look(found.conditions, unseen, now_s)
        if found.coordinator:
            ends = found.request_ends
            due += self._conditions.requests_ended(found.coordinator, ends, now_s)
        for draft in due:
            message = draft.addressed(self._ids.next("note"), self._rules.service_name, now_s)
            self._log("message to operators", kind=message.kind, title=message.title)
            for outbox in self._outboxes:
                outbox.put(message)
        await self._save()

    async def _found(self) -> tuple[Notices, Sequence[str]]:
        """Return the conditions that are there, and the kinds that cannot be seen now."""
        silent: list[Condition] = []
        if self._watch.silent_s:
            silent.append(Condition(kind="store-silent", subject="", text=self._watch.warning))
        try:
            notices = await self._coordinator.notices()
        except CompactionError as error:
            try:
                await self._coordinator.edition()
            except CompactionError:
                text = redacted(str(error))
                silent.append(Condition(kind="coordinator-silent", subject="", text=text))
            seen_elsewhere = [kind for kind in self._rules.conditions if kind not in SILENT]
            return Notices(coordinator="", conditions=tuple(silent)), seen_elsewhere
        conditions = (*notices.conditions, *silent)
        return replace(notices, conditions=conditions), ()

    # ----------------------------------------------------------------------------------- Delivery

    async def _deliver_forever(self, outbox: _Outbox) -> None:
        failures = 0
        while True:
            if not outbox.messages:
                outbox.news.clear()
                await outbox.news.wait()
            message = outbox.messages[0]
            if await self._try(outbox, message):
                failures = 0
                # The oldest may have been dropped meanwhile.
                if outbox.messages and outbox.messages[0] is message:
                    outbox.messages.popleft()
                await self._save()
                continue
            await asyncio.sleep(min(RETRY_MAX_S, RETRY_BASE_S * 2 ** min(failures, 10)))
            failures += 1

    async def _try(self, outbox: _Outbox, message: Message) -> bool:
        """Try to deliver a message; return whether it is done with."""
        target = outbox.target.name
        if self._clock.now_s() - message.at_s > AGE_MAX_S:
            outbox.dropped += 1
            self._log("message not sent", target=target, title=message.title, cause="too old")
            return True
        try:
            await outbox.target.send(message)
        except RefusedForGoodError as error:
            outbox.dropped, outbox.failure = outbox.dropped + 1, str(error)
            self._log("message not sent", target=target, title=message.title, cause=str(error))
            return True
        except CompactionError as error:
            if outbox.failure != str(error):
                self._log("message is retried", target=target, cause=str(error))
            outbox.failure = str(error)
            return False
        outbox.sent, outbox.failure = outbox.sent + 1, ""
        return True

    # ---------------------------------------------------------------------------------- Remembered

    async def _load(self) -> None:
        """Restore what an earlier gateway has sent: the newer of what file and store hold.

        While the store is silent, the file suffices. Without a file, conditions that were sent
        before may be sent again only if the store is silent when the gateway starts.
        """
        kept = [self._from_file(), *await self._from_store()]
        documents = [one for one in kept if one]
        self._is_loaded = True
        if not documents:
            return
        newest = max(documents, key=lambda document: float(document.get("at_s", 0)))
        try:
            self._conditions.restore(newest, self._clock.now_s())
            waiting = {
                name: [Message(**fields) for fields in messages[-QUEUE_MAX:]]
                for name, messages in newest["waiting"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._log("sent messages are unknown", cause=f"{type(error).__name__}: {error}")
            return
        for outbox in self._outboxes:
            for message in waiting.get(outbox.target.name, []):
                outbox.put(message)

    def _from_file(self) -> dict[str, Any]:
        if not self._rules.state_file:
            return {}
        with suppress(OSError, ValueError):
            return _document(regular_text(self._rules.state_file, STATE_BYTES_MAX))
        return {}

    async def _from_store(self) -> list[dict[str, Any]]:
        with suppress(CompactionError, ValueError):
            await self._watch.until_looked()
            if not self._watch.silent_s:
                lines = await self._store.audit(1, NOTIFIED)
                return [_document(line.decode()) for line in lines]
        return []

    async def _save(self) -> None:
        """Keep what was sent, and what waits, in the file and in the store."""
        document = self._conditions.document()
        document["waiting"] = {
            outbox.target.name: [asdict(message) for message in outbox.messages]
            for outbox in self._outboxes
        }
        plain = json.dumps(document, separators=(",", ":")).encode()
        if plain == self._saved == self._stored:
            return
        async with self._saving:
            await self._keep(document, plain)

    async def _keep(self, document: dict[str, Any], plain: bytes) -> None:
        document["at_s"] = self._clock.now_s()
        line = json.dumps(document, separators=(",", ":")).encode()
        if plain != self._saved and self._to_file(line):
            self._saved = plain
        if plain != self._stored and await self._to_store(line):
            self._stored = plain

    def _to_file(self, line: bytes) -> bool:
        if not self._rules.state_file:
            return True
        try:
            write_private(Path(self._rules.state_file), line)
        except OSError as error:
            self._log("sent messages not kept", where="file", cause=str(error))
            return False
        return True

    async def _to_store(self, line: bytes) -> bool:
        if self._watch.silent_s:
            return False
        try:
            await self._store.note_audit([line], REMEMBERED, NOTIFIED)
        except CompactionError as error:
            self._log("sent messages not kept", where="store", cause=redacted(str(error)))
            return False
        return True


def _document(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004  the caller handles it like wrong JSON
    return document
