"""The views of the console, one module for each subject.

    overview  what needs the reader, and the last hour
    tables    all tables, sortable and filterable

The order of `PAGES` is the order of the navigation.
"""

from neve.console.frame import PageRoute
from neve.console.pages.overview import overview
from neve.console.pages.tables import tables

PAGES: tuple[PageRoute, ...] = (overview, tables)
"""All pages. The first match of an address wins."""
