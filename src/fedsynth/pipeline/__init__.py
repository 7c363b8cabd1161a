"""How stages are run: planned, keyed, cached, committed. Knows no paper, and imports neither torch nor Lightning."""
