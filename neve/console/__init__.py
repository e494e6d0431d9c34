"""The console: web pages for the people who run the service, rendered in the gateway.

    pages/   the views: what each page reads, and how it is put
    frame    how a page is declared, what its handler gets; templates, plots, static files

`templates/` and `static/` are next to the modules. `neve.gateway.console` serves the pages. A page
knows nothing of HTTP, of the store or of the coordinator: it reads through the handlers of the API,
as the signed-in caller.
"""
