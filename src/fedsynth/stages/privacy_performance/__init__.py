"""Test metrics, membership attack and Privacy-Performance Score of one classifier."""
