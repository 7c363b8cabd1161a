"""Attacks and fidelity, by an auditor who sees everything."""
