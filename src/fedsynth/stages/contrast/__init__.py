"""Two systems on the same test records."""
