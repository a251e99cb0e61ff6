"""`python -m sparklog.gateway`: the gateway as a broker starts it."""

from __future__ import annotations

import sys

from sparklog.gateway.main import main

sys.exit(main())
