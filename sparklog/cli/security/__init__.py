"""Commands for users, ACLs, quotas and certificates, and for the set-up of a secure cluster."""
