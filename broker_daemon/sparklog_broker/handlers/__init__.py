"""One module per group of APIs; each handler is `async def handle(request, payload, context) -> Response`."""
