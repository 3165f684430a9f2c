"""Warmdesk's own texts: small talk, contacts, "I am not sure"."""
