"""sparklog measured side by side with its peers: `make bench`, `make bench-report`, `make bench-quick`."""
