"""Shared by all tests: eight fake CPU devices in this process, one compile cache for the session, no network."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ("reference",)

# Hundreds of processes import the same thousands of modules, and each worker rewrites the assertions of every test:
# they are compiled once, also where the machine's own setting is to keep nothing.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Read by jax when it is first imported here. `support/trainer.py` takes it away from the trainers that it starts.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `trainkit` sets it
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
#: One module of machine code takes less of the processor than the 32 that a program is divided into otherwise.
QUICK_TO_COMPILE = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + QUICK_TO_COMPILE

# W&B gives its own processes seconds to begin
os.environ["WANDB__SERVICE_WAIT"] = os.environ["WANDB_INIT_TIMEOUT"] = "240"

# Examples are the same in every run, and take as long as they take: on a busy machine one of 20 ms takes a second.
hypothesis.settings.load_profile("ci")

#: The functions whose tests took longer than this many seconds, of one worker of two cores, with what they took:
#: `pytest --write-slow` writes it from a whole run. Such a test is `slow`, and files begin in the order of their sums.
SLOW, SECONDS = Path(__file__).parent / "slow.txt", 0.5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help=f"write {SLOW.name} from what the tests took")


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests in tests/gpu the GPU of this machine, if they alone are run: `pytest -n 0 -m gpu`."""
    if config.option.markexpr == "gpu" and any(Path("/dev").glob("nvidia[0-9]*")):
        assert "jax" not in sys.modules, "too late: jax has read its settings"
        for name in ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
            os.environ.pop(name, None)
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "").removesuffix(QUICK_TO_COMPILE)
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # trainers that tests start need room beside this process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by where it is and by what it uses. Those that are marked with nothing else are `quick`."""
    seconds = {name: float(number) for number, name in map(str.split, SLOW.read_text().splitlines())}
    files: Counter[Path] = Counter()
    for item in items:
        marks = _marks(item, seconds)
        for mark in marks or ["quick"]:
            item.add_marker(mark)
    for path, name in dict.fromkeys((item.path, _function(item.nodeid)) for item in items):
        files[path] += seconds.get(name, 0.0)
    # Begun last, one worker would wait for the other. xdist hands files out in this order, which it is told to keep
    items.sort(key=lambda item: -files[item.path])


def _marks(item: pytest.Item, seconds: Mapping[str, float]) -> list[str]:
    marked = {mark.name for mark in item.iter_markers()}
    if "quick" in marked:
        return []
    rules = {
        "slow": "end_to_end" in item.path.parts or _function(item.nodeid) in seconds,
        "torch": "reference" in getattr(item, "fixturenames", ()),
        "terminal": hasattr(getattr(item, "module", None), "Terminal"),
        "ray": "ray" in item.path.stem.split("_"),
        "gpu": "gpu" in item.path.parts,
    }
    return [name for name, holds in rules.items() if holds or name in marked]


def _function(node: str) -> str:
    return node.partition("[")[0].rpartition("::")[2]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which quick tests are not, or write down what all tests took."""
    reports = [one for kind in ("passed", "failed", "") for one in terminalreporter.getreports(kind)]
    took: Counter[str] = Counter()
    for report in reports:
        took[_function(report.nodeid)] += report.duration
    long = [(seconds, name) for name, seconds in took.most_common() if seconds > SECONDS]
    if config.option.write_slow:
        SLOW.write_text("".join(f"{seconds:.1f} {name}\n" for seconds, name in long))
    elif config.option.markexpr == "quick" and (long := [one for one in long if one[0] > 5 * SECONDS]):
        terminalreporter.write_line(f"not quick, to be written into {SLOW.name}:")
        for seconds, name in long:
            terminalreporter.write_line(f"{seconds:.1f} {name}")


def pytest_collection_finish() -> None:
    """What has been imported stays: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A trainer within a test may leave signals ignored: the next test, and all processes that it starts, have them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def _forgetful() -> Iterator[None]:
    """What a file has compiled is forgotten after it: it would be gigabytes in the end. What remains, such as modules
    that it has imported, remains for good: the collector need not look at it during all files after this one."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    gc.collect()
    gc.freeze()
