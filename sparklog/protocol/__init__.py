"""The wire protocol without I/O: it converts bytes into typed frames and messages, and back. The package uses no
socket."""
