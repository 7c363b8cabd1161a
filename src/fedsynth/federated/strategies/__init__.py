"""Server strategies: model states in, one model state out; none of them knows Lightning."""
