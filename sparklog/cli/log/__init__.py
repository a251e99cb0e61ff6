"""`sparklog log`: tools for the files of a data directory."""
