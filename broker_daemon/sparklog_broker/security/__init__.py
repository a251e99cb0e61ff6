"""The broker's side of `sparklog.security`: users, ACLs, quotas, audit log, keys."""
