"""`python -m sparklog_broker`."""

from __future__ import annotations

import sys

from sparklog_broker.main import main

sys.exit(main())
