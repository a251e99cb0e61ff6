"""The console: web pages that show a cluster, served by the process `sparklog console`.

The console uses the cluster through the public clients. `pages` sends requests and fills templates, `views` computes
the content of a page from the responses, and all pages use `web`, `guard` and `work`.
"""
