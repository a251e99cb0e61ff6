"""The broker's HTTP pages: metrics for Prometheus, and health.

`service` connects the parts. `http_server` answers requests, which `http_request` parses; `health` has the stage of the
broker's life; `loop_delay` measures the event loop. A scrape is rendered on a separate thread: `broker_collector` reads
the broker's parts; modules such as `kafka_names` and `sparklog_names` turn the numbers into families; `exposition`
names the formats of the text.
"""
