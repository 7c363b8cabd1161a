"""The identity network P(x, x') and the thresholds of the identity filter."""
