"""E-DAIC, the Extended Distress Analysis Interview Corpus: layout, checks, features, clients, simulation.

Nothing is imported here: the layout must be known before anything heavy is loaded.
"""
