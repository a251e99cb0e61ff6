"""The bytes of files and batches, one module per structure. No module opens a file or a socket."""
