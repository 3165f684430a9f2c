"""Permissions: accounts and sign-ins, visitors, limits. Pages and routes are in `app.web` and `app.api`."""
