"""The toy stages are importable while these tests run."""

from __future__ import annotations

import sys
from pathlib import Path

# At import: the test modules import the toys themselves.
sys.path.insert(0, str(Path(__file__).parent))
