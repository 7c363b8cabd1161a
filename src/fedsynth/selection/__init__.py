"""Which candidates of an image set may leave: identity filter, ranking, and what to do when nothing passes."""
