"""What the stages that train a classifier of two modalities share: settings, strategies, rounds, artifacts."""
