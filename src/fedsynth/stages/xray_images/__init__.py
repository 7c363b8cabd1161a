"""Real chest X-rays with patients → train, validation and test images of a site."""
