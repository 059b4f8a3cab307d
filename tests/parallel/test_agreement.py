"""What a process of a run does when the others do not answer."""

from __future__ import annotations

import pytest

from trainkit.parallel import agreement, hosts


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
        agreement.gather(1)  # what saves the state after an error
    if number:
        with pytest.raises(hosts.ProcessEnded, match="no longer waits"):
            hosts.from_first(lambda: 1)
