"""ChestMNIST → X-ray encoder."""
