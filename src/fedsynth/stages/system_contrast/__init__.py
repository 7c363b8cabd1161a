"""One system against several others on the same participants."""
