"""DenseNet trained on one arm's images, tested on real ones."""
