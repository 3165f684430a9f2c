"""The command `warmdesk`."""
