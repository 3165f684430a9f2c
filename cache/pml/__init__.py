"""The Prompt Markup Language: reading, writing, rules, layout and binding to a plan."""
