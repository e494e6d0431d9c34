"""`neve status`."""

from rich.console import RenderableType

from common.units import format_count, format_duration
from neve import api
from neve.cli.compactors import (
    render_compactors,
    render_groups,
    render_scaling,
)
from neve.cli.doctor import try_cluster
from neve.cli.render import (
    facts,
    lines,
    quarantine_texts,
    time_text,
)
from neve.cli.session import (
    Panel,
    Session,
    verb,
)
from neve.client.errors import UnavailableError

TRIGGERS_SHOWN = 5
"""Number of tables whose last trigger `neve status` shows; `--json` has more."""


def render_status(found: api.Status) -> RenderableType:
    """Render the state of the whole service."""
    return lines(
        facts(
            [
                ("coordinator", f"up for {format_duration(max(found.now_s - found.started_s, 0))}"),
                ("tables", found.tables),
                ("tablets", _tablets_text(found)),
                ("committed", f"{format_count(found.committed, 'job')}"),
                ("failed", f"{format_count(found.failed, 'job')}"),
                ("released", f"{found.released:,} reservations"),
                ("quarantined", f"{format_count(found.quarantined, 'tablet')}"),
                *(("quarantine", text) for text in quarantine_texts(found)),
                *(("error", error) for error in found.errors),
                *(("note", warning) for warning in found.warnings),
                *(("store", store_warning) for store_warning in found.store_warnings),
                *(
                    ("trigger", _trigger_text(trigger))
                    for trigger in found.triggers[:TRIGGERS_SHOWN]
                ),
            ]
        ),
        "",
        render_groups(found.groups),
        *render_scaling(found.groups),
        "",
        render_compactors(found.compactors),
    )


def _tablets_text(found: api.Status) -> str:
    """Return the number of known tablets, and whether the first scan may add more."""
    if not found.tables_unscanned:
        return f"{found.tablets_known:,}"
    return (
        f"{found.tablets_known:,} so far: the first scan since the start is running, "
        f"{found.tables_unscanned:,} of {format_count(found.tables, 'table')} left"
    )


def _trigger_text(found: api.TableTrigger) -> str:
    counts = [
        f"{count:,} {verdict}"
        for verdict, count in (
            ("accepted", found.accepted),
            ("held", found.held),
            ("refused", found.refused),
            ("failed", found.failed),
        )
        if count
    ]
    tablets = f"tablets: {', '.join(counts)}" if counts else "no planner was asked"
    asked = f"{found.table}: {found.trigger} at {time_text(found.triggered_at_s)}, {tablets}"
    return f"{asked} ({found.refusal})" if found.refusal else asked


@verb("status", Panel.SEE, "neve status")
def status(session: Session) -> None:
    """Show the state of the whole service."""
    try:
        found = session.client.status()
    except UnavailableError as error:
        # With a cluster address in the environment, explain why no service could be started there.
        wrong = [
            attempt_try.found
            for attempt_try in try_cluster()
            if attempt_try.refused or attempt_try.odd
        ]
        if not wrong:
            raise
        raise UnavailableError("; ".join((str(error), *wrong))) from error
    for fault in session.stack_faults:
        session.say(f"warning: {fault}")
    session.show(found, lambda: render_status(found))
