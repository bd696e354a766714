"""Tests with libraries of others, which `tools/setup.sh --integrations` installs. A test whose
library is missing is skipped."""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "python"), str(TESTS.parent / "build" / "python")]
sys.path.append(str(TESTS / "tools"))

# Nothing is downloaded: models are created from small configurations.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# JAX divides the CPU into eight devices. Read when it is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
