"""What the desk says of itself: small talk, contacts, and how it says that it is not sure."""
