"""Networks only: tensors in, tensors out. Training, data and files live elsewhere."""
