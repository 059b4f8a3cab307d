"""Shared by all tests: eight fake CPU devices in this process, one compile cache for the session, no network."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

pytest_plugins = ("reference",)

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
# programs that run for milliseconds are worth little of the compiler's time, which would be most of the suite's. Every
# process of a test is told the same, so that what is compared was computed alike.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

#: Files whose tests take long, though there are few of them: begun last, one worker would wait for the other.
LONG = (
    "test_data_run", "test_precision_run", "test_parity", "test_use", "test_resume", "test_oom", "test_fit",
    "test_orders", "test_track_real", "test_adapter_run", "test_export_answers", "test_exporting", "test_terminal",
    "test_bindings", "test_pretrained", "test_precision",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. xdist hands files out in this order: it is told not to sort them by their number of tests."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """What has been imported stays: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _forgetful() -> Iterator[None]:
    """What a file has compiled is forgotten after it: it would be gigabytes in the end, which the collector looks at
    again and again."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
        gc.collect()
