"""The version of all three packages; below everything, so that the client can name it."""

__version__ = "0.1.0"
