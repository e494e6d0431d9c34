"""Tables: all tables that the caller may read."""

from neve.console.frame import Heading, Variables, View, listing, page

HEADINGS = (Heading("name", "Table", lambda table: table.name, number=False),)


@page("/console/tables", "tables.html", of="GET /v1/tables", title="Tables", nav="Tables")
async def tables(view: View) -> Variables:
    """Return the tables of this page."""
    listed = (await view.read("GET /v1/tables"))["tables"]
    return {"listed": listing(view, HEADINGS, listed)}
