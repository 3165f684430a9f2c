"""The Prompt Markup Language (PML): reading, writing, rules, layout, and binding a prompt to a plan."""
