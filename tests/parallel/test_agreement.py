"""What a process of a run does when the others do not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trainkit.parallel import agreement, hosts
from trainkit.parallel.presence import Presence


class Absent:
    """The coordination service of a run whose other process waits for a device and never answers."""

    def __init__(self) -> None:
        self.waits = 0

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        pass

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return []

    def blocking_key_value_get_bytes(self, key: str, patience: int) -> bytes:
        self.waits += 1
        assert self.waits < 10, "this process waits for ever"
        raise RuntimeError("DEADLINE_EXCEEDED")


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_cannot_share_its_error_waits_for_the_others_no_more(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(hosts, "_group", hosts.ProcessGroup(Absent(), number, 2))
    monkeypatch.setattr(agreement, "_MEETING", -1.0)
    error = ValueError("of this process")
    assert agreement.share(error) is error
    with pytest.raises(hosts.ProcessEnded, match="no longer waits"):
        agreement.gather("rescue", 1)  # what saves the state after an error
    if number:
        with pytest.raises(hosts.ProcessEnded, match="no longer waits"):
            hosts.from_first(lambda: 1)


class Gone:
    """The coordination service after the first process has ended."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise RuntimeError(self.answer if name == "blocking_key_value_get_bytes" else "UNAVAILABLE")

        return call


@pytest.mark.parametrize("answer", ["UNAVAILABLE", "DEADLINE_EXCEEDED"])
@pytest.mark.parametrize(
    "call",
    [
        lambda: agreement.agree("batch"),
        lambda: agreement.first_problem("save/1/written", None),
        lambda: hosts.from_first(lambda: 1),
        lambda: hosts.send_to_first("15"),
    ],
    ids=["agree", "first_problem", "from_first", "send_to_first"],
)
def test_a_process_whose_first_one_is_gone_says_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, answer: str, call: Callable[[], Any]
) -> None:
    monkeypatch.setattr(hosts, "_group", hosts.ProcessGroup(Gone(answer), 1, 2))
    with pytest.raises(hosts.ProcessEnded, match="another process of this run has ended"):
        call()


class Shared(dict[str, bytes]):
    """The coordination service of processes that all answer."""

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        if key in self:
            raise RuntimeError("ALREADY_EXISTS")
        self[key] = value

    def key_value_delete(self, prefix: str) -> None:
        pass

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return []

    def blocking_key_value_get_bytes(self, key: str, patience: int) -> bytes:
        while key not in self:
            time.sleep(0.001)
        return self[key]


def test_processes_that_meet_for_different_reasons_take_neither_for_the_other() -> None:
    service = Shared()
    groups = [hosts.ProcessGroup(service, number, 2) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        same = [pool.submit(agreement._meet, group, "batch", group.number) for group in groups]
        assert [each.result() for each in same] == [[0, 1], [0, 1]]
        pairs = zip(groups, ("batch", "rescue"), strict=True)
        other = [pool.submit(agreement._meet, group, purpose, True) for group, purpose in pairs]
        for each in other:
            with pytest.raises(hosts.ProcessFailed, match=r"different places: 0 \(batch\), 1 \(rescue\)"):
                each.result()


def test_a_name_can_be_used_again_as_by_a_run_that_goes_back() -> None:
    service = Shared()
    groups = [hosts.ProcessGroup(service, number, 2) for number in range(2)]
    for problem in ("this disk is full", None):
        with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
            each = iter(groups)
            patch.setattr(hosts, "group", lambda each=each: next(each))
            said = [pool.submit(agreement.first_problem, "save/1/written", problem) for _ in groups]
            assert {one.result() for one in said} == {problem and f"process 0: {problem}"}


@pytest.mark.parametrize(("number", "waits"), [(0, [hosts._LAST]), (1, [])])
def test_the_first_process_ends_after_the_others_also_where_one_of_them_never_leaves(
    monkeypatch: pytest.MonkeyPatch, number: int, waits: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(hosts, "_group", hosts.ProcessGroup(Gone("DEADLINE_EXCEEDED"), number, 3))
    monkeypatch.setattr(hosts.time, "sleep", slept.append)
    monkeypatch.setattr(hosts.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as end:
        hosts.leave(1)
    assert end.value.code == 1 and slept == waits, "jax aborts whoever is still there when the first one ends"


@pytest.mark.parametrize("call", [lambda: agreement.agree("batch"), lambda: hosts.send_to_first("15")])
def test_whoever_cannot_send_names_the_process_that_is_known_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]
) -> None:
    presence = Presence(Gone("UNAVAILABLE"), number=1, address="localhost:1")  # its thread ends without a connection
    presence.lost = "process 0 on east"
    monkeypatch.setattr(hosts, "_group", hosts.ProcessGroup(Gone("UNAVAILABLE"), 1, 2, presence=presence))
    with pytest.raises(hosts.ProcessEnded, match="process 0 on east has ended"):
        call()
