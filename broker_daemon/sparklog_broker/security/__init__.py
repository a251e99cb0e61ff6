"""The broker's part of `sparklog.security`: users, ACLs, quotas, audit log, keys."""
