"""Diffusion of latent vectors as plain functions: schedule, loss, guidance, sampling. No training loop."""
