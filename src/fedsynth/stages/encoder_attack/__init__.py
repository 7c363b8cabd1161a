"""Membership attacks on the encoder's own outputs."""
