"""What the broker shows of itself over HTTP: its numbers as Prometheus reads them, and its health.

`service` puts the parts together. `http_server` answers requests (`http_request` reads them), `health` knows whether
the broker serves, `loop_delay` measures the event loop. A scrape is rendered on a thread of its own: `broker_collector`
reads the broker's parts, `kafka_names`, `sparklog_names` and `groups` make families of what it found, and `exposition`
makes text of them.
"""
