"""MIMIC-CXR-JPG, CheXpert and ChestX-ray14 as users have them on disk: the three sites of PSO-secure sharing."""
