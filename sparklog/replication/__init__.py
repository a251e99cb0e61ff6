"""Pure state machines: event in, effects out. No clocks, no sockets, no files."""
