"""Shared by all tests: eight fake CPU devices in this process, one compile cache for the session, no network."""

from __future__ import annotations

import os
import tempfile

import pytest

from trainkit.dashboard.crowding import Crowding

#: Read by jax when it is first imported here. `tests/trainer.py` takes it away from the trainers that it starts.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
# pytest imports readline, which tells every process that it starts, such as a worker with tests, that this is 80 by 24
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)
os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp(prefix="trainkit-tests-cache-"))
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(os.environ["XDG_CACHE_HOME"], "trainkit", "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashboards in this process draw as on a machine that nobody else uses, whatever else runs here."""
    monkeypatch.setattr(Crowding, "crowded", lambda crowding: False)
