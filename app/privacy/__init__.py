"""What customers write of themselves and the desk need not know."""
