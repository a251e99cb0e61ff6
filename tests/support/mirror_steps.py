"""Steps at which a test makes a mirror worker die."""

from __future__ import annotations

MIRROR_STEPS = ("mirror.before-append", "mirror.after-append")
REFUSED_STEPS = ("mirror.before-refused", "mirror.after-refused")
"""Steps of a mirror of a typed topic with refused records."""
