"""Images → features of a frozen encoder, the pseudo-conditions."""
