"""Shared fixtures, and Hypothesis profiles: `steady` finds the same cases every time, `explore` looks for new ones."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of recorded calls that are not in the repository: `data` in PLAYCALL_SHARED, or in ../shared."""
    data = Path(os.environ.get("PLAYCALL_SHARED") or ROOT.parent / "shared").resolve() / "data"
    if not data.is_dir():
        pytest.skip("no recorded calls: PLAYCALL_SHARED names no folder with `data` in it, and ../shared is none")
    return data
