"""Overview: one sentence, what needs the reader, and the last hour."""

from neve.console.frame import Variables, View, page


@page("/console", "overview.html", of="GET /v1/tables", title="Overview", nav="Overview")
async def overview(view: View) -> Variables:
    """Return what the overview shows to this caller."""
    return {"status": await view.maybe("GET /v1/status")}
