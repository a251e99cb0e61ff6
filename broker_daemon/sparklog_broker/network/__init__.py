"""Sockets, frames and replies, and the limits on the time and memory that a client can use."""
