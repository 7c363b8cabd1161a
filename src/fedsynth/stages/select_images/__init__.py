"""Candidates → the synthetic set: identity filter, predicate ranking, and what to do when nothing passes."""
