"""Readers, splits, client partitions and pairing of the data sets; no models.

Nothing is imported here, so that `fedsynth.data.sources` stays fast and free of torch.
"""
