"""Evidence: every number in the README comes from here."""
