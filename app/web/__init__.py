"""The pages and the HTTP server."""
