"""Identity, permissions and quotas of a peer. Most modules are pure rules without sockets, and the caller passes in the
time. See docs/internals/security.md.

Code that needs a library of the extra `security` (for SCRAM, OAUTHBEARER, certificates) imports it at its first use.
"""
