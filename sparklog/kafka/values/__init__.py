"""The values of records as rows of a schema, by the format of the values. The functions are pure."""
