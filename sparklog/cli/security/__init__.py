"""Users, ACLs, quotas, certificates, and the secure set-up."""
