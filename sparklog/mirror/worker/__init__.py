"""The mirror worker, which fills mirrored topics from their sources. It is above the client."""
