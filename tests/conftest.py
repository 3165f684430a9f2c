"""Fixtures all tests share. One thread: on a busy machine more are slower and less predictable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TQDM_DISABLE", "1")  # read at import, so it must stand before any
sys.path.insert(0, str(Path(__file__).parent))

import torch

torch.set_num_threads(1)
