"""Agents: hand-offs, their queue and the webhook; bad answers and the FAQ. Pages and routes are in `app.web`."""
