"""Sockets, frames and answers, and the peers' limits on the broker's time and memory."""
