"""Pseudo-conditions that also hold what the real classifier sees."""
