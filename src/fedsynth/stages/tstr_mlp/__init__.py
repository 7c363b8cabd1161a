"""Train on synthetic latents, test on real ones."""
