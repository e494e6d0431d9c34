"""The one stack of this package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from common.control_settings import CatalogSettings, NotifySettings
from common.settings import TraceSettings
from neve.client.errors import NotFoundError, RefusedError, UnavailableError
from neve.local import StackOptions
from tests.support.iceberg_tables import sqlite_catalog, sqlite_properties
from tests.support.installed_stack import InstalledStack
from tests.support.message_receivers import WebhookReceiver, webhook_receiver
from tests.support.s3_process import AGED
from tests.support.s3_server import VARIABLES, S3Server, s3_server
from tests.support.stack import COMPACTORS, SETTINGS, Service
from tests.support.trace_receiver import Receiver, trace_receiver

GIBI = 1024**3


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    """Where the service sends its traces."""
    with trace_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def objects() -> Iterator[S3Server]:
    """An object store that the service finds by its environment alone."""
    with s3_server() as server:
        for bucket in ("tables", AGED):
            server.create_bucket(bucket)
        yield server


@pytest.fixture(scope="package")
def hook() -> Iterator[WebhookReceiver]:
    """Where the service sends its notifications."""
    with webhook_receiver() as hook:
        yield hook


@pytest.fixture(scope="package")
def service(
    tmp_path_factory: pytest.TempPathFactory,
    receiver: Receiver,
    objects: S3Server,
    hook: WebhookReceiver,
) -> Iterator[Service]:
    """A service that each test leaves as it was: two compactors, nothing in their hands.

    It looks at logs and catalogs of lake tables every half second.
    """
    secrets = tmp_path_factory.mktemp("secrets")
    for name, text in (("url", hook.url), ("key", "key-of-the-webhook")):
        (secrets / name).write_text(text)
    notify = NotifySettings(
        webhook_url_file=str(secrets / "url"),
        webhook_key_file=str(secrets / "key"),
        gather_s=0.5,
        calm_s=1.0,
        silent_after_s=1.0,
    )
    folder = tmp_path_factory.mktemp("service")
    sqlite_catalog(folder / "iceberg")
    catalog = {"type": "sql", **sqlite_properties(folder / "iceberg")}
    settings = replace(
        SETTINGS,
        catalog=CatalogSettings(poll_s=0.5),
        catalogs={"prod": catalog, "cloud": {**catalog, "warehouse": "s3://tables/iceberg"}},
        gateway=replace(SETTINGS.gateway, memory_max=2 * GIBI),
        trace=TraceSettings(endpoint=receiver.endpoint),
        notify=notify,
    )
    options = StackOptions(
        compactors=len(COMPACTORS),
        settings=settings,
        allow=("s3://tables", f"s3://{AGED}", "s3://no-such-bucket"),
    )
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= objects.environ
    with InstalledStack.start(home=folder, name="e2e", options=options, environ=environ) as stack:
        yield Service(stack, folder)


@pytest.fixture(scope="module", autouse=True)
def _without_tables_afterwards(service: Service) -> Iterator[None]:
    """Drop what the tests of a file leave: the coordinator looks at each table every second."""
    yield
    # The last tests of the package end the service; a table may be dropped already.
    with suppress(UnavailableError):
        for table in service.client.tables():
            with suppress(RefusedError, NotFoundError):
                service.client.drop(table.name)
