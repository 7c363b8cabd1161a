"""Released images of several sites in one set."""
