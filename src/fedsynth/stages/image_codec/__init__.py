"""The codec between images and the latents that diffusion models see."""
