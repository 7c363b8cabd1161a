"""One temperature, fitted on validation records."""
