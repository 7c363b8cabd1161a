"""The federated X-ray + ECG encoder."""
