"""Identity, permissions and quotas of a peer: pure rules, without sockets and clocks of their own. See
docs/internals/security.md.

Code that needs a library of the extra `security` (SCRAM, OAUTHBEARER, certificates) imports it at its first use.
"""
