"""What a plan is made of: devices, data, the split of the batch, bytes; and the plan itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainkit.recipe.families.sizes import Remat

Compute = Literal["float32", "bfloat16", "float16", "fp8"]
#: Share of a device's memory that is planned with; the rest is fragmentation and what the estimate forgets.
USABLE = 0.9
#: Categories of the estimate that live within a step only.
WITHIN_STEP = ("gradients", "cast_parameters", "activations", "logits")
#: The kind of devices that are not there: a plan for them is compiled for as many CPUs.
SUPPOSED = "supposed device"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that train. `memory_bytes` is that of one device, None where it is not known."""

    count: int
    platform: str = "cpu"
    kind: str = "cpu"
    memory_bytes: int | None = None

    @property
    def supposed(self) -> bool:
        return self.kind == SUPPOSED

    @property
    def usable_bytes(self) -> int | None:
        """What is planned with, of one device; None where its memory is not known."""
        return None if self.memory_bytes is None else int(USABLE * self.memory_bytes)

    def have_room_for(self, size: float) -> bool | None:
        """Whether so many bytes on each are within what is planned with; None where that is not known."""
        return None if self.usable_bytes is None else size <= self.usable_bytes


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """One epoch of the training data, from the cache's ledger. `batches` is given where none lies in two epochs,
    `tokens_per_batch`, on average and without padding, where there is padding."""

    examples: int
    batches: int | None = None
    tokens: int
    documents: int
    bytes: int
    tokens_per_batch: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """`micro * accumulation * replicas == global_size`, in sequences."""

    global_size: int
    micro: int
    accumulation: int
    replicas: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a recipe may leave to the memory of the device: sequences that it processes at once, and what is kept."""

    micro: int
    remat: Remat


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one device holds while a compiled step runs, in bytes.

    Exact: `parameters` (those that are trained), `frozen`, `optimizer` and `snapshot` (the copy that a checkpoint is
    written from). XLA's own numbers,
    from `memory_analysis`: `rest` (what else goes in: the batch, keys), `batches` (those that wait), `program`, and the
    sum of `temporary`, which is all that lives within a step. How `temporary` is divided, XLA does not tell:
    `gradients`, `activations` and `logits` in it are estimates, no more than there is, and `workspace` is what remains.
    """

    parameters: int
    frozen: int = 0
    optimizer: int
    snapshot: int
    rest: int
    batches: int
    program: int
    temporary: dict[str, int]

    @property
    def by_category(self) -> dict[str, int]:
        exact = {name: size for name, size in asdict(self).items() if name != "temporary"}
        if not self.frozen:
            del exact["frozen"]
        return {**exact, **self.temporary}

    @property
    def peak(self) -> int:
        return sum(self.by_category.values())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do. Padding is no token; where the data is not counted yet, every position counts as one.

    `bytes` are estimates for each device: `parameters` (those that are trained), `frozen`, `gradients`, `optimizer` and
    `snapshot` (the copy that a checkpoint is written from) are divided by the fsdp axis, and gradients are float32
    whatever the parameters are;
    `cast_parameters` (the parameters in the compute dtype), `activations` and `logits` are those of one micro-batch and
    are not divided.
    """

    steps: int
    epochs: float | None
    batch: BatchSplit
    sequence_length: int | None
    """None where documents are not text: then an example counts as one token."""
    tokens_per_step: int
    total_tokens: int
    parameters: int
    trainable: int
    """Of the parameters; all of them, or those of the adapter."""
    parameters_by_part: dict[str, int]
    flops_per_token: int
    total_flops: int
    bytes: dict[str, int]
    compute: Compute
    remat: Remat
    data_axis: int
    fsdp_axis: int
    vocab_size: int
    devices: Devices

    @property
    def total_bytes(self) -> int:
        """The estimate for one device, all categories together."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool | None:
        """Whether the estimate is within the usable memory of a device; None where that is not known."""
        return self.devices.have_room_for(self.total_bytes)

    @property
    def step_bytes(self) -> int:
        """The estimate of what lives only within a step."""
        return sum(size for what, size in self.bytes.items() if what in WITHIN_STEP)

    @property
    def choice(self) -> Choice:
        return Choice(micro=self.batch.micro, remat=self.remat)

    @property
    def tokens_per_parameter(self) -> float:
        return self.total_tokens / self.parameters

    def summary(self) -> dict[str, Any]:
        """All of it as plain JSON, for the `planned` event."""
        return {**asdict(self), "total_bytes": self.total_bytes, "fits": self.fits}
