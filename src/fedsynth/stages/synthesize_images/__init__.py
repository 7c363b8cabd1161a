"""Noise → candidates: several latent images for each real one, sampled from its own condition."""
