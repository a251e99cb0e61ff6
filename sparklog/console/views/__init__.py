"""The content of pages, computed from responses of the cluster. Sends no requests."""
