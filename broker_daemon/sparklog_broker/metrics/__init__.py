"""The broker's HTTP pages: metrics for Prometheus, and health.

`service` puts the parts together. `http_server` answers requests (`http_request` reads them), `health` has the stage of
the broker's life, `loop_delay` measures the event loop. A scrape is rendered on a thread of its own: `broker_collector`
reads the broker's parts, `kafka_names`, `sparklog_names` and `groups` turn the numbers into families, and `exposition`
turns these into text.
"""
