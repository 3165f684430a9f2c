"""Private data that customers write and Warmdesk does not need."""
