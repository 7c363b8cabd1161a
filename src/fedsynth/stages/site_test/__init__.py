"""Classifiers tested on the real images of another site."""
