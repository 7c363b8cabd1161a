"""Latents → noisy shard means, on the clients."""
