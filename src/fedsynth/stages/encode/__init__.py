"""Records → latents, on the clients."""
