"""The training images, encoded and decoded again."""
