"""What is run: one folder per kind of stage, each with ``spec.py`` (settings and boundary) and ``run.py``."""
