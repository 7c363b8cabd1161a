"""Cross-validation of training sets, with ranks over the folds."""
