"""The image diffusion model, conditioned on pseudo-features, classes or nothing."""
