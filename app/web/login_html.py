"""The admin login page: one small form, no script. Styled by style.css, which the server gives out as
/desk.css.
"""

from __future__ import annotations

from app.web.markup import escape


def login_html(error: str = "") -> str:
    """error: one line about the last try."""
    problem = f'<p class="wd-error" role="alert" id="problem"><span>{escape(error)}</span></p>' if error else ""
    described = ' aria-describedby="problem" aria-invalid="true"' if error else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Warmdesk</title>
<link rel="stylesheet" href="/desk.css"><link rel="icon" href="/favicon.ico"></head>
<body class="wd-login"><main><form method="post" action="/admin/login">
<div class="wd-brand"><span class="wd-logo" aria-hidden="true"></span><b>Warmdesk</b></div>
<h1>Sign in to the admin area</h1>
<p class="wd-quiet">The password was shown once, when this desk was started for the first time.</p>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password"
 required autofocus maxlength="1024"{described}>
{problem}<button type="submit">Sign in</button>
<a href="/">Back to the chat</a></form></main></body></html>"""
