"""Federated learning inside one Lightning Trainer: clients, server strategies, and the round loop.

Only ``loop``, ``trainer``, ``sharding`` and ``progress`` know Lightning; ``state``, ``client`` and ``strategies`` do not.
"""
