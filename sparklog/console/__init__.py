"""The console: a cluster in the browser, served by a process of its own (`sparklog console`).

Pages ask the cluster through the clients that everybody has. `views` makes of the answers what a page shows, without
asking anybody; `pages` asks and hands over; `web`, `guard` and `work` are what all pages share.
"""
