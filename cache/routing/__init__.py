"""The choice among several engines for a request."""
