"""The latent diffusion model."""
