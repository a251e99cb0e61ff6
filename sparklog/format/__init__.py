"""Bytes: one module per on-disk structure. Nothing here opens a file or a socket."""
