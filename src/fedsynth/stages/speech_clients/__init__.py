"""E-DAIC → what each client holds."""
