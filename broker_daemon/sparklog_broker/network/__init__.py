"""Sockets, frames and answers, and what peers may take of the broker's time and memory."""
