"""What the pages show, made of what the clients return; nothing here asks anybody."""
