"""Hostile input: structurally valid, with content that lies. Every reader runs in a process of its own; see
docs/internals/threat-model.md. `python -m tests.campaigns.fuzz` runs one target by hand and replays a case."""
