"""Content of the pages, computed from the clients' results, without requests."""
