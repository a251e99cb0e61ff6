"""The flights demo: a year of real flights through a sparklog broker into Spark and out again, every row counted.

Run it with `make demo`, or `python notebooks/flights_demo --help` in an environment with `sparklog[demo]`.
"""
