"""The classifier of speech segments, trained by any strategy."""
