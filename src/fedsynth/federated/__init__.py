"""Federated learning inside one Lightning Trainer: clients, server strategies, and the round loop.

``state``, ``client`` and ``strategies`` know nothing of Lightning; only ``loop`` imports its protected names.
"""
