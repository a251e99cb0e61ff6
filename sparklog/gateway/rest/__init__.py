"""The HTTP server of the schema registry: connections, and the exchange with the registry's log."""
