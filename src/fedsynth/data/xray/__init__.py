"""Chest X-rays whose patients are known: readers, patient-disjoint splits, sites."""
