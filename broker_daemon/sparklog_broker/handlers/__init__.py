"""Handlers, one module per group of APIs. A handler is `async def handle(request, payload, context) -> Response`."""
