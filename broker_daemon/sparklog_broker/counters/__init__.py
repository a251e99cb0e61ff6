"""What the broker counts about itself: plain numbers, kept where the work is done and read by `metrics`."""
