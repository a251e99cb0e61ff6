"""The version of all three packages. This module imports nothing, so that every other module can import it."""

__version__ = "0.1.0"
