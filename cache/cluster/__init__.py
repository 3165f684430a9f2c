"""Several engines under Ray Serve, used as one."""
