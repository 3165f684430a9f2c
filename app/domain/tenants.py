"""Names under which encoded modules are kept apart (`cache.memory.keys.PUBLIC_TENANT` is the desk's own)."""

PML_TENANT = "pml"
"""Modules of prompts written in PML are kept apart from the desk's passages: they may hold any text, also that of a
document, so forgetting a document drops all of them."""
