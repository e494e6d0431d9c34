"""A receiver of webhooks and a mail server on this machine, which keep all that they are sent."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@dataclass
class Call:
    """A call of a webhook, as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.body))


@dataclass
class WebhookReceiver:
    """What has arrived; tests change the answers while it runs."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Answers to the next calls; 200 after them."""
    location: str = ""
    """Header of every answer; empty: none."""

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The bodies of the calls that were answered with success."""
        return [call.document for call in self.calls]


@contextmanager
def webhook_receiver(certificate: str = "") -> Iterator[WebhookReceiver]:
    """Listen on a free port of the loopback, with TLS if there is a certificate."""
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 200:
                receiver.calls.append(Call(self.path, dict(self.headers.items()), body))
            self.send_response(status)
            if receiver.location:
                self.send_header("location", receiver.location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_values: object) -> None:
            pass  # The test's output is about something else.

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        receiver.url = f"{scheme}://127.0.0.1:{server.server_port}/hook?token=of-the-address"
        with _served(server):
            yield receiver


@dataclass
class MailServer:
    """A mail server that takes mail over TLS only, after a login if it wants one."""

    context: ssl.SSLContext
    implicit: bool
    login: tuple[str, str] | None
    port: int = 0
    mails: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    """Recipients, and the mail."""
    codes: list[int] = field(default_factory=list)
    """Replies to the next mails; 250 after them."""
    plain: list[bytes] = field(default_factory=list)
    """All lines that arrived without TLS."""


@contextmanager
def mail_server(
    certificate: str, *, implicit: bool = False, login: tuple[str, str] | None = None
) -> Iterator[MailServer]:
    """Serve SMTP (RFC 5321) with STARTTLS (RFC 3207), or with TLS from the start."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    state = MailServer(context, implicit, login)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            conversation = _Conversation(state, self.request)
            try:
                with suppress(OSError):  # A client that does not trust the certificate.
                    conversation.run()
            finally:
                conversation.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        with _served(server):
            yield state


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


class _Conversation:
    """One connection of a mail server."""

    def __init__(self, state: MailServer, connection: Any) -> None:
        self._state, self._connection = state, connection
        self._secure = self._known = False
        self._recipients: list[str] = []
        self._reader = connection.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def run(self) -> None:
        if self._state.implicit:
            self._secured()
        self._say(220, "mail.test")
        while line := self._reader.readline():
            if not self._secure:
                self._state.plain.append(line)
            words = line.decode().split()
            verb = words[0].upper()
            if verb == "QUIT":
                self._say(221, "bye")
                return
            if verb == "STARTTLS":
                self._say(220, "go ahead")
                self._secured()
            else:
                self._answer(verb, words[1:])

    def _answer(self, verb: str, words: list[str]) -> None:
        match verb:
            case "EHLO":
                offers = ["AUTH PLAIN"] if self._secure else ["STARTTLS"]
                self._connection.sendall(b"250-mail.test\r\n")
                self._say(250, offers[0])
            case "AUTH":
                given = base64.b64decode(words[1]).decode().split("\0")[1:]
                self._known = tuple(given) == self._state.login
                self._say(235 if self._known else 535, f"for {given[0]} and {given[1]}")
            case "MAIL" if not self._secure or (self._state.login and not self._known):
                self._say(530, "not yet")
            case "RCPT":
                self._recipients.append(words[0].removeprefix("TO:").strip("<>"))
                self._say(250, "ok")
            case "DATA":
                self._take()
            case _:
                self._say(250, "ok")

    def _take(self) -> None:
        self._say(354, "end with a dot")
        lines = []
        while (line := self._reader.readline()) != b".\r\n":
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        code = self._state.codes.pop(0) if self._state.codes else 250
        if code == 250:
            mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
            self._state.mails.append((self._recipients, cast("EmailMessage", mail)))
        self._recipients = []
        self._say(code, "that is it")

    def _secured(self) -> None:
        self._reader.close()
        self._connection = self._state.context.wrap_socket(self._connection, server_side=True)
        self._reader = self._connection.makefile("rb")
        self._secure = True

    def _say(self, code: int, text: str) -> None:
        self._connection.sendall(f"{code} {text}\r\n".encode())
