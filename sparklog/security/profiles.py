"""Profiles: named files of client settings, such as one for each cluster.

A profile is a file of Java properties, `NAME.properties`, in the directory `sparklog` of the user's configuration
directory (`~/.config`, or XDG_CONFIG_HOME). SPARKLOG_CONFIG_DIR names another directory. The file has
`bootstrap.servers` and security settings, in the format of Kafka's tools.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sparklog.errors import InvalidConfigError
from sparklog.settings import did_you_mean

PROFILE_VARIABLE = "SPARKLOG_PROFILE"
DIRECTORY_VARIABLE = "SPARKLOG_CONFIG_DIR"
SUFFIX = ".properties"


def profile_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the profiles."""
    if environ.get(DIRECTORY_VARIABLE):
        return Path(environ[DIRECTORY_VARIABLE])
    return Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "sparklog"


def profile(name: str) -> str:
    """Return the path of a profile's file, for the argument `security` of every client.

    Args:
        name: The profile's name.

    Returns:
        The path.

    Raises:
        InvalidConfigError: There is no such profile. The message names the existing ones.

    Example:
        ```python
        admin = sparklog.Admin(security=sparklog.profile("prod"))
        ```
    """
    directory = profile_directory(os.environ)
    names = sorted(p.name.removesuffix(SUFFIX) for p in directory.glob(f"*{SUFFIX}"))
    if name not in names:
        hint = did_you_mean(name, names) if names else ": the directory has no profiles"
        raise InvalidConfigError(
            f"no profile {name!r} in {directory}{hint}; a profile is a file NAME{SUFFIX} with bootstrap.servers and "
            "security settings"
        )
    return str(directory / f"{name}{SUFFIX}")
