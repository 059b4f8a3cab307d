"""`scripts/gpu.py`: results are kept whatever ends a part, and carried packages take no installed one's place."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))
import gpu
import step
from gpu_parts import place as places
from gpu_parts.place import Part, Place, Row, table_rows
from kernels import Kernel, kernels_of
from overlap import Transfer, transfers


def ran(tmp_path: Path, rows: object, *, seconds: float = 60.0) -> tuple[int, dict]:
    """Run a part; its exit code and its results."""
    place = Place("1", tmp_path / "results", seconds, sys.executable, True)
    code = place.run(Part(rows, "what it shows"))
    return code, json.loads((tmp_path / "results" / "part-1.json").read_text())


@pytest.fixture(autouse=True)
def quick_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FACTS", "import json; print(json.dumps({'device': 'a | b', 'jax': '1'}))")


def test_rows_before_an_error_are_kept_and_each_names_device_versions_and_date(tmp_path: Path) -> None:
    def rows(place: Place) -> Iterator[Row]:
        yield Row("speed", "2 | 3")
        yield Row("bits", "the same", "the same", True)
        raise ValueError("no more")

    code, results = ran(tmp_path, rows)
    assert code == 1 and [row["good"] for row in results["rows"]] == [None, True, False]
    assert "no more" in results["rows"][-1]["found"] and results["date"][:2] == "20"
    _, _, *table = (tmp_path / "results" / "part-1.md").read_text().splitlines()
    assert len(table) == 3
    for line in table:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 8 and cells[0] == "1" and cells[4].startswith("a / b, driver")
        assert cells[5] == "jax 1" and cells[7] == results["date"]
    assert "| the same: yes |" in table[1] and "NO |" in table[2]


def test_a_command_that_outlasts_the_part_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    # what it started holds its output open, so that reading to the end would wait for it
    program = "import subprocess\nsubprocess.run(['sleep', '600'])"

    def rows(place: Place) -> Iterator[Row]:
        done = place.call([sys.executable, "-c", program])
        yield Row("the command", done.last_line, "ended", done.code is None)

    code, results = ran(tmp_path, rows, seconds=1.0)
    assert code == 0 and results["rows"][0]["found"] == "not done when the part's time was over"


def test_tables_are_found_between_other_lines() -> None:
    text = "# title\n\n| a | b |\n|---|:-:|\n| 1 | 2 |\nwords\n| c |\n|---|\n| 3 |\n| 4 |\n"
    assert list(table_rows(text)) == [{"a": "1", "b": "2"}, {"c": "3"}, {"c": "4"}]


def test_only_packages_that_are_missing_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("numpy-0.1-py3-none-any", "carried_thing-1.0-py3-none-any"):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as wheel:
            wheel.writestr(f"{name.partition('-')[0]}/__init__.py", "")
    gpu.use(tmp_path)
    unpacked = tmp_path / "unpacked"
    assert [path.name for path in unpacked.iterdir()] == ["carried_thing"]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(unpacked), "before"]


PROGRAM = """\
%layer (p: (f32[8])) -> (f32[8]) {
  %gather-start = (bf16[2]{0}, bf16[8]{0}) all-gather-start(%p), channel_id=1
  %gemm_fusion_dot.1 = f32[8]{0} fusion(%p), kind=kCustom, backend_config={"kind":"__triton_nested_gemm_fusion"}
  %add.1 = f32[8]{0} fusion(%gemm_fusion_dot.1), kind=kLoop
  %product.2 = f32[8]{0} custom-call(%p), custom_call_target="__cublas$lt$matmul"
  %gather-done = bf16[8]{0} all-gather-done(%gather-start)
  ROOT %product.3 = f32[8]{0} custom-call(%gather-done), custom_call_target="__cublas$gemm"
}

ENTRY %main (q: f32[8]) -> f32[8] {
  %loop = f32[8]{0} while(%q), condition=%cond, body=%layer
  %all-reduce-start = f32[] all-reduce-start(%loop), channel_id=2
  ROOT %all-reduce-done = f32[] all-reduce-done(%all-reduce-start)
}
"""


def test_products_between_the_start_and_the_end_of_a_transfer_are_counted() -> None:
    assert list(transfers(PROGRAM)) == [
        Transfer("all-gather", "bf16[8]{0}", loop=True, products=2),
        Transfer("all-reduce", "f32[]", loop=False, products=0),
    ]


THUNKS = """\
001: kKernel loop_fusion grid: [1, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
002: kCustomKernel [prev=001 (1)] queries_kernel grid: [16, 4, 2] threads: [128, 1, 1]  shared_memory: 50176 bytes
003: kCustomKernel [prev=002 (1)] keys_kernel__1 grid: [16, 4, 2] threads: [128, 1, 1]  shared_memory: 1024 bytes
"""
#: Repeats the number of registers that stands in its source, as the real one says it.
PTXAS = """\
#!/bin/sh
printf "ptxas info : 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\\n" >&2
printf "ptxas info : Used %s registers, used 1 barriers\\n" $(sed -n 's/registers //p' "$3") >&2
"""


def test_what_a_kernel_needs_is_read_from_what_the_compilers_say(tmp_path: Path) -> None:
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(PTXAS)
    ptxas.chmod(0o755)
    (tmp_path / "step.thunk_sequence.txt").write_text(THUNKS)
    for number, (name, registers) in enumerate((("loop_fusion", 1), ("keys_kernel__1", 200), ("queries_kernel", 80))):
        (tmp_path / f"step.{number}.ptx").write_text(f".visible .entry {name}(\nregisters {registers}\n")
    assert list(kernels_of(tmp_path, str(ptxas), "sm_90a")) == [Kernel(80, 16, 50176), Kernel(200, 16, 1024)]


def test_what_parts_start_finds_trainkit_and_carried_packages_where_neither_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", {"PYTHONPATH": "carried"})
    gpu.settle(small=True)
    assert str(gpu.ROOT) in sys.path and os.environ["PYTHONPATH"].split(os.pathsep) == [str(gpu.ROOT), "carried"]
    step.settle_environment(on_gpu=False)
    assert os.environ["PYTHONPATH"].split(os.pathsep)[-1] == "carried"


def test_every_part_has_a_name_in_order_and_says_what_it_shows() -> None:
    assert list(gpu.PARTS) == sorted(gpu.PARTS) and {name[0] for name in gpu.PARTS} == set("12345678")
    assert all(part.shows for part in gpu.PARTS.values()) and places.LIMIT <= 540
