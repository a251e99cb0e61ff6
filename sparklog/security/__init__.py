"""Who a peer is, what it may do and how much: pure rules, without sockets and clocks of their own. See
docs/internals/security.md.

What needs a library of the extra `security` (SCRAM, OAUTHBEARER, certificates) imports it when it is first used.
"""
