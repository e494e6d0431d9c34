"""The views of the console, one module for each subject.

    overview    what needs the reader, and the last hour
    tables      all tables; one table: heat map, sizes of files, the last day, settings
    figures     geometry of heat maps, histograms, bars over a range, timelines
    tablet      one tablet: files over the keys, what the planner says, the story
    jobs        queues, running jobs, finished jobs
    requests    requests, one request, a new request with a dry run
    control     the controller: curve, shares, latency of readers; compactors, scaling, limits
    what_if     simulated days: a table or a specification, variants side by side
    access      audit, rights, search

The order of `PAGES` is the order of the navigation.
"""

from neve.console.frame import PageRoute
from neve.console.pages.access import audit_page, rights_page, search_page
from neve.console.pages.control import compactors_page, control_page
from neve.console.pages.jobs import history_page, queue_page, running_page
from neve.console.pages.overview import overview
from neve.console.pages.requests import compact_dry_run, compact_page, request_page, requests_page
from neve.console.pages.tables import settings_dry_run, settings_page, table_page, tables
from neve.console.pages.tablet import tablet_page
from neve.console.pages.what_if import what_if_page, what_if_simulated

PAGES: tuple[PageRoute, ...] = (
    overview,
    tables,
    table_page,
    settings_page,
    settings_dry_run,
    tablet_page,
    queue_page,
    running_page,
    requests_page,
    request_page,
    compact_page,
    compact_dry_run,
    compactors_page,
    control_page,
    what_if_page,
    what_if_simulated,
    history_page,
    audit_page,
    rights_page,
    search_page,
)
"""All pages. The first match of an address wins."""
