"""Tools that inspect and repair files while no broker uses them: `sparklog log verify`, `dump` and `repair`."""
