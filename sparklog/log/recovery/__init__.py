"""From files to a log, at a start; and from a log to a shorter one."""
