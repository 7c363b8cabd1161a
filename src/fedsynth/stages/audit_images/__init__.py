"""A released image set against the real images: fidelity, diversity, re-identification, singling out."""
