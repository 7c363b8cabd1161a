"""Stages of arithmetic on JSON files, one module each, for tests of the machinery. No torch.

measure (client, private numbers) → publish (client, released mean) → total, train (server).
"""
