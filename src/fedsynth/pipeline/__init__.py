"""How stages are run: planned, keyed, stored. Knows no paper; needs neither torch nor Lightning."""
