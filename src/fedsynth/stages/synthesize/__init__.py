"""Noise → synthetic latents, on the server."""
