"""Latents → what leaves the clients: noisy shard means, or noisy moments."""
