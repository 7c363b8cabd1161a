"""fedsynth: federated learning, private release and diffusion synthesis of medical data."""

__version__ = "0.1.0"
