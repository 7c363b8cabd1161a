"""The real images that candidates were made of: what synthetic sets of their number are compared with."""
