"""Raw files → what each client holds."""
