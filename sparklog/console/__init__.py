"""The console: a cluster in the browser, served by a process of its own (`sparklog console`).

Pages use the cluster through the public clients. `views` turns the answers into the content of a page, without
requests; `pages` sends the requests and fills the templates; `web`, `guard` and `work` are shared by all pages.
"""
