"""People who step in: when a conversation goes to a person, the agents' queue, the webhook that tells of it. Pages and
routes are in `app.web`.
"""
