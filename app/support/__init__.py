"""People who step in and look after the answers: hand-offs, the agents' queue and the webhook; bad answers, and the FAQ
that agents write. Pages and routes are in `app.web`.
"""
