"""What looks into files, and mends them, while no broker has them: `sparklog log verify`, `dump` and `repair`."""
