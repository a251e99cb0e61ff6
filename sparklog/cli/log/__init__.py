"""`sparklog log`: tools that read, check and repair the files of a data directory."""
