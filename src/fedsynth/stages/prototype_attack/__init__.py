"""What the prototypes of federated training give away about records."""
