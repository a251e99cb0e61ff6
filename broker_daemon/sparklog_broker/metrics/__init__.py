"""The broker's HTTP pages: metrics for Prometheus, and health.

`service` connects the parts. `http_server` answers requests, which `http_request` parses; `health` has the stage of the
broker's life; `loop_delay` measures the event loop. A scrape is rendered on a separate thread: `broker_collector` reads
the broker's parts; `kafka_names`, `sparklog_names` and `groups` turn the numbers into families; `exposition` names the
formats of the text.
"""
