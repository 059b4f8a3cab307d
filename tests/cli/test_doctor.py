"""What `trainkit doctor` makes of machines that are described to it, and of this one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trainer
from hypothesis import given
from hypothesis import strategies as st
from places import LIMIT

from trainkit.cli import doctor
from trainkit.cli.doctor import Diagnosis, MachineReport, Seen, diagnose
from trainkit.parallel import reasons
from trainkit.parallel.reasons import GpuFacts as Gpu
from trainkit.parallel.reasons import why_no_gpu

JAX = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA13 = JAX | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}
H200 = Gpu(driver="580.95.05", cards=("NVIDIA H200",), nodes=True, packages=CUDA13)
NOTHING = Gpu(packages=JAX)
WELL = MachineReport(
    python=(3, 11, 7),
    gpu=NOTHING,
    seen=Seen(devices=("cpu:0 cpu",)),
    cores=16,
    memory=(60 * 10**9, 64 * 10**9),
    disks={"runs": 10**12},
    shm=32 * 10**9,
    term="xterm-256color",
)
WITH_GPU = replace(WELL, gpu=H200, seen=Seen(devices=("gpu:0 NVIDIA H200",)))

#: What is wrong -> the machine, what is said of it, and what to do about it.
NO_GPU = {
    "there is none": (NOTHING, "has no NVIDIA GPU", "--gpus all"),
    "another system": (replace(NOTHING, system="Darwin"), "found Darwin", "WSL2"),
    "no plugin": (replace(H200, packages=JAX), "plugin is not installed", "uv sync --extra cuda13"),
    "no plugin, older driver": (replace(H200, packages=JAX, driver="550.54.15"), "not installed", "--extra cuda12"),
    "no plugin, Volta": (replace(H200, packages=JAX, cards=("Tesla V100-SXM2-16GB",)), "V100", "--extra cuda12"),
    "no plugin, ancient driver": (replace(H200, packages=JAX, driver="470.82.01"), "too old", "update the driver"),
    "plugin of another version": (
        replace(H200, packages=CUDA13 | {"jax-cuda13-plugin": "0.11.0"}),
        "jax-cuda13-plugin 0.11.0, which does not match jaxlib 0.10.2",
        'pip install --upgrade "trainkit[cuda13]"',
    ),
    "half a plugin of another version": (
        replace(H200, packages=CUDA13 | {"jax-cuda13-pjrt": "0.9.0"}),
        "jax-cuda13-pjrt 0.9.0",
        "install them together",
    ),
    "driver too old for this plugin": (replace(H200, driver="550.54.15"), "needs 580", "--extra cuda12"),
    "driver too old for any plugin": (replace(H200, driver="470.82.01"), "too old", "update the driver"),
    "card without a driver": (replace(H200, driver=None, nodes=False), "no NVIDIA driver is loaded", "at least 580"),
    "driver without device nodes": (replace(H200, nodes=False), "/dev/nvidia* is missing", "nvidia-modprobe"),
    "hidden from JAX": (replace(H200, environment={"JAX_PLATFORMS": "cpu"}), "JAX_PLATFORMS=cpu", "unset JAX_PLAT"),
    "hidden from CUDA": (replace(H200, environment={"CUDA_VISIBLE_DEVICES": ""}), "hides every GPU", "unset CUDA"),
    "nothing that we know of": (H200, "could not start", "jax.devices()"),
}


@pytest.mark.parametrize("wrong", NO_GPU)
def test_why_there_is_no_gpu_is_reported_with_the_way_out(wrong: str) -> None:
    facts, problem, hint = NO_GPU[wrong]
    found = why_no_gpu(facts)
    assert problem in found.problem and hint in found.hint


@pytest.mark.parametrize("wrong", [name for name, (facts, _, _) in NO_GPU.items() if facts.cards])
def test_doctor_says_the_same_of_a_gpu_that_cannot_be_used_and_that_it_is_bad(wrong: str) -> None:
    facts, problem, hint = NO_GPU[wrong]
    (found,) = [one for one in diagnose(replace(WELL, gpu=facts)) if one.what == "gpu"]
    assert found.level == "bad" and problem in found.message and hint in found.fix


def bad_or_doubtful(facts: MachineReport) -> list[Diagnosis]:
    return [finding for finding in diagnose(facts) if finding.level != "ok"]


@pytest.mark.parametrize("facts", [WELL, WITH_GPU], ids=["cpu", "gpu"])
def test_a_machine_that_is_well_has_nothing_to_be_mended(facts: MachineReport) -> None:
    assert bad_or_doubtful(facts) == []
    assert all(finding.fix == "" for finding in diagnose(facts))


SICK = {
    "old Python": (replace(WELL, python=(3, 10, 2)), "bad", "python", "uv python install 3.12"),
    "new Python": (replace(WELL, python=(3, 13, 0)), "bad", "python", "uv python install 3.12"),
    "no jaxlib": (replace(WELL, gpu=Gpu(packages={"jax": "0.10.2"})), "bad", "jax", "uv sync"),
    "jaxlib ahead": (replace(WELL, gpu=Gpu(packages=JAX | {"jaxlib": "0.11.0"})), "bad", "jax", "uv sync"),
    "a driver that hangs": (replace(WITH_GPU, seen=Seen(waited=60.0)), "bad", "devices", "dmesg"),
    "JAX that fails": (replace(WELL, seen=Seen(error="RuntimeError: no")), "bad", "devices", "JAX_PLATFORMS=cpu"),
    "no nvidia-ml-py": (replace(WITH_GPU, nvml="No module named 'pynvml'"), "warn", "nvml", "--extra cuda13"),
    "plugin without a GPU": (
        replace(WELL, gpu=Gpu(packages=CUDA13 | {"jaxlib": "0.10.1"})), "warn", "plugin", "uv sync",
    ),
    "little memory": (replace(WELL, memory=(2 * 10**9, 64 * 10**9)), "warn", "memory", "close other programs"),
    "no memory": (replace(WELL, memory=(10**8, 64 * 10**9)), "bad", "memory", "close other programs"),
    "a full disk": (replace(WELL, disks={"runs": 10**8}), "bad", "disk", "free some space"),
    "a disk that is not ours": (replace(WELL, disks={"runs": None}), "bad", "disk", "allow writing"),
    "Docker's shared memory": (
        replace(WITH_GPU, seen=Seen(devices=("gpu:0 a", "gpu:1 a")), shm=64 << 20), "warn", "/dev/shm", "--shm-size",
    ),
    "a locale of 1980": (replace(WELL, encoding="ANSI_X3.4-1968"), "warn", "locale", "LC_ALL=C.UTF-8"),
    "a dumb terminal": (replace(WELL, term="dumb"), "warn", "terminal", "TERM="),
    "tmux with few colours": (replace(WELL, term="screen", tmux=True), "warn", "terminal", "terminal-features"),
    "no Aim": (replace(WELL, aim="No module named 'aim'"), "warn", "aim", "track.aim=false"),
}  # fmt: skip


@pytest.mark.parametrize("what", SICK)
def test_what_is_wrong_is_found_alone_and_reported_with_its_fix(what: str) -> None:
    facts, level, where, fix = SICK[what]
    (found,) = [one for one in bad_or_doubtful(facts) if not (what == "a driver that hangs" and one.what == "gpu")]
    assert (found.level, found.what) == (level, where) and fix in found.fix


VERSIONS = st.sampled_from(["", "0.10.2", "0.10.1", "0.11.0.dev1", "470.1", "550.54", "580.65.06", "x"])


@given(
    st.builds(
        Gpu,
        system=st.sampled_from(["Linux", "Windows"]),
        driver=st.none() | VERSIONS,
        cards=st.lists(st.sampled_from(["NVIDIA H200", "Tesla V100-PCIE-16GB", "\x1b[2J"]), max_size=3).map(tuple),
        nodes=st.booleans(),
        packages=st.dictionaries(st.sampled_from([*CUDA13, "jax-cuda12-plugin"]), VERSIONS),
        environment=st.dictionaries(st.sampled_from(["JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"]), st.text(max_size=5)),
    ),
    st.sampled_from([Seen(devices=("cpu:0 cpu",)), Seen(devices=("gpu:0 x",)), Seen(error="e"), Seen(waited=1.0)]),
)
def test_of_any_machine_everything_that_is_wrong_has_a_fix_and_no_text_moves_the_cursor(gpu: Gpu, seen: Seen) -> None:
    reason = why_no_gpu(gpu)
    assert reason.problem and reason.hint
    found = diagnose(replace(WELL, gpu=gpu, seen=seen))
    assert all((finding.level == "ok") == (finding.fix == "") for finding in found)
    assert all(c == "\n" or c.isprintable() for c in "\n".join(doctor.lines(found)))


def test_only_numbers_decide_whether_versions_go_together() -> None:
    assert reasons.mismatches(Gpu(packages=CUDA13 | {"jax-cuda13-plugin": "0.10.2.post1"})) == []
    assert len(reasons.mismatches(Gpu(packages=CUDA13 | {"jaxlib": "0.10.3"}))) == 2


def test_a_question_that_is_not_answered_is_given_up() -> None:
    question = doctor.Question("import time; time.sleep(600)")
    answer = question.answer(deadline=0.0)
    assert isinstance(answer, float) and answer < LIMIT
    question._child.wait(LIMIT)


def test_what_went_wrong_in_a_question_is_its_last_line() -> None:
    import time

    question = doctor.Question("import sys; print('1', flush=True); sys.exit('first\\nno such driver')")
    assert question.answer(time.monotonic() + LIMIT) == ("1\n", "no such driver")
    silent = doctor.Question("import os; os._exit(3)")
    assert silent.answer(time.monotonic() + LIMIT) == ("", "the check ended with exit code 3")


def test_a_place_that_may_not_even_be_searched_is_one_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._free(tmp_path / "to" / "be" / "made")

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert doctor._free(tmp_path / "closed" / "cache") is None


def test_the_memory_in_the_report_is_what_trainers_plan_with(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = SimpleNamespace(answer=lambda deadline: ('["cpu:0 cpu"]', ""))
    monkeypatch.setattr(doctor, "Question", lambda code: answers)
    monkeypatch.setattr(doctor, "available_memory", lambda: 5)
    monkeypatch.setattr(doctor, "whole_memory", lambda: 7)
    assert doctor.look().memory == (5, 7)
    monkeypatch.setattr(doctor, "whole_memory", lambda: None)
    assert doctor.look().memory is None


def test_the_command_describes_this_machine_as_lines_and_as_json(tmp_path: Path) -> None:
    told = trainer.trainkit(tmp_path, "doctor", "--json")
    findings = json.loads(told.stdout)["findings"]
    levels = {finding["level"] for finding in findings}
    assert told.returncode == ("bad" in levels), told.stdout
    (devices,) = [finding for finding in findings if finding["what"] == "devices"]
    assert devices["message"] == "cpu:0 cpu" and list(tmp_path.iterdir()) == []


def test_the_command_ends_with_1_where_something_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "look", lambda: replace(WELL, gpu=replace(H200, packages=JAX)))
    text, code = doctor.doctor()
    assert code == 1 and "bad   gpu" in text and "fix: uv sync --extra cuda13" in text
    monkeypatch.setattr(doctor, "look", lambda: WITH_GPU)
    assert doctor.doctor(json=True)[1] == 0
