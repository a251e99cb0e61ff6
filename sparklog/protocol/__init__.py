"""The wire protocol, sans I/O: bytes in, typed frames and messages out, and back. No socket is touched here."""
