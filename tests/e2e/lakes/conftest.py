"""The one stack of this package: it follows lake tables, and knows a catalog of Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.control_settings import CatalogSettings
from neve.local import StackOptions
from tests.support.iceberg_tables import sqlite_catalog, sqlite_properties
from tests.support.installed_stack import InstalledStack
from tests.support.stack import COMPACTORS, SETTINGS, Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of two compactors that looks at logs and catalogs every half second."""
    folder = tmp_path_factory.mktemp("lake")
    sqlite_catalog(folder / "iceberg")
    catalogs = {"prod": {"type": "sql", **sqlite_properties(folder / "iceberg")}}
    settings = replace(SETTINGS, catalog=CatalogSettings(poll_s=0.5), catalogs=catalogs)
    options = StackOptions(compactors=len(COMPACTORS), settings=settings, allow=(str(folder),))
    with InstalledStack.start(home=folder, name="e2e", options=options) as stack:
        yield Service(stack, folder)
