"""Rows for people and files: values as text and JSON, and writers of CSV, JSON, Parquet and Arrow."""
