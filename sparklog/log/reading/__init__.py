"""What readers get: slices and ranges of files, and offsets for timestamps."""
