"""What has been written and is not on the disk yet, and getting it there."""
