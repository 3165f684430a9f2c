"""People who step in and look after the answers: hand-offs with the agents' queue and the webhook, answers that were bad,
the questions that agents answer themselves. Pages and routes are in `app.web`.
"""
