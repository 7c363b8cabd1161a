"""Where the synthetic-trained classifier fails, and how that relates to the latents."""
