"""Where the data is that comes with the program: the adapter, the calibration, the sample help centre.

A source tree has it in `data/`; an installed wheel has it in `warmdesk_data/`, beside the packages.
"""

from pathlib import Path

_ROOT = Path(__file__).parents[2]
_IN_SOURCE_TREE = _ROOT / "data"
SHIPPED_DATA = _IN_SOURCE_TREE if (_IN_SOURCE_TREE / "search.json").is_file() else _ROOT / "warmdesk_data"
