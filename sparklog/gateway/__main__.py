"""`python -m sparklog.gateway`: the command with which a broker starts its gateway."""

from __future__ import annotations

import sys

from sparklog.gateway.main import main

sys.exit(main())
