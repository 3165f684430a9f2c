"""Several engines under Ray Serve, used as one."""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it says when processes are begun
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else what is asked after the end begins another cluster
