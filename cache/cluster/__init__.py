"""Several engines under Ray Serve, used as one."""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise it logs each new process
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # otherwise a call after the end starts another cluster
