"""Real minus synthetic AUROC on the same test images."""
