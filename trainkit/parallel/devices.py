"""The devices of this process, and the best way to compute on them."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from trainkit.errors import TrainkitError
from trainkit.parallel import hosts
from trainkit.parallel.hardware import available_memory
from trainkit.parallel.reasons import overlooked_gpu, why_no_gpu
from trainkit.plan import Devices, KeptByAttention

#: See `models.attention.causal_attention`.
AttentionName: TypeAlias = Literal["blockwise", "xla", "cudnn", "splash", "pallas"]
#: The first architectures with units for 8-bit floating point (Ada, Hopper), for bfloat16 (Ampere), and with cuDNN
#: flash attention (Ampere).
FP8_CAPABILITY, BFLOAT16_CAPABILITY, FLASH_CAPABILITY = (8, 9), (8, 0), (8, 0)
#: Splash takes so many positions at once; its sequence lengths and head widths are multiples of it.
FLASH_BLOCK = 128
#: The implementations that know segments by a matrix of length x length for each row.
MASKED: tuple[AttentionName, ...] = ("cudnn", "xla")
#: The widest heads of cuDNN's flash attention and of trainkit's.
CUDNN_WIDTH, OWN_WIDTH = 128, 256


class AttentionChoice(NamedTuple):
    """An implementation of attention, and for people the reason why no faster one was chosen."""

    name: AttentionName
    reason: str
    fallback: str = ""
    """Which of trainkit's own kernels do not work here, and what replaces them; empty where nothing does."""
    masked: bool = False
    """Whether it gets a matrix of length x length for each row, because rows have segments."""

    def keeps(self, compute: jnp.dtype) -> KeptByAttention:
        """Return what it holds for a micro-batch when products are in `compute`.

        cuDNN's bias exists twice: compiled for an H100, packed rows added 3.8 bytes in bfloat16 for each pair of
        positions of a row of 4,096.
        """
        if not self.masked:
            return KeptByAttention(self.name in ("xla", "blockwise"))
        return KeptByAttention(self.name == "xla", mask_bytes=2 * compute.itemsize if self.name == "cudnn" else 1)


class Capabilities(NamedTuple):
    """What a device can do. `compute_capability` is NVIDIA's, and None for other devices."""

    platform: str
    kind: str
    compute_capability: tuple[int, int] | None


#: The memory of a device for which all processes of a run plan.
_agreed_memory: int | None = None


def agree_on_memory(platform: str) -> None:
    """Let all processes of a run plan for the memory that the first one sees, so that their plans are the same."""
    global _agreed_memory
    if hosts.count() > 1:
        memory = local(platform).memory_bytes  # opening the devices waits for all processes
        _agreed_memory = hosts.from_first(lambda: memory)


def local(platform: str = "auto") -> Devices:
    """Return this machine's devices for the plan. The memory of a CPU is what the host has available.

    Raises:
        TrainkitError: there are no devices of the `platform` that the recipe asks for.
    """
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")  # does not open a GPU, which would take its memory
    try:
        devices = jax.devices()
    except RuntimeError as error:  # JAX_PLATFORMS names a platform without devices
        raise _unavailable(platform, str(error)) from error
    if platform not in ("auto", devices[0].platform):
        raise _unavailable(platform, f"JAX found {devices[0].device_kind} only")
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if memory is None and devices[0].platform == "cpu" and (available := available_memory()) is not None:
        memory = available // len(jax.local_devices())
    if _agreed_memory is not None:
        memory = _agreed_memory
    return Devices(
        count=len(devices),
        platform=devices[0].platform,
        kind=devices[0].device_kind,
        memory_bytes=memory,
        bfloat16=_has_bfloat16(capabilities()),
    )


def fallbacks(local: Devices, *, platform: str, compute: str) -> list[str]:
    """Return, in words, what is slower than it could be because of this machine's GPU or its driver.

    Args:
        platform: `parallel.platform` of the recipe.
        compute: the dtype that the plan computes in.
    """
    found = []
    if platform == "auto" and local.platform == "cpu" and (reason := overlooked_gpu()):
        found.append(f"training on the CPU: {reason.problem}; {reason.hint}")
    if not local.bfloat16 and compute == "float16":
        found.append(f"computing in float16, with a scaled loss: {local.kind} has no units for bfloat16")
    return found


def _unavailable(platform: str, why: str) -> TrainkitError:
    problem, hint = why_no_gpu() if platform == "gpu" else (why, "")
    return TrainkitError(
        f"there is no {'device' if platform == 'auto' else platform.upper()} to train on: {problem}",
        where="parallel.platform",
        hint="; ".join(filter(None, (hint, "more about this machine: trainkit doctor"))),
    )


def choose_attention(
    device: Capabilities,
    compute: jnp.dtype,
    head_width: int,
    sequence_length: int | None,
    segments: bool,
    special: str | None = None,
    own: str | None = None,
    broken: str = "",
) -> AttentionChoice:
    """Return the fastest attention on this device for these shapes. `sequence_length` is None if it varies.

    `special` names, in the plural, features of the model's attention that no kernel has, and `own` those that only
    trainkit's kernels for GPUs have: see `models.attention.causal_attention`. `broken` says why these do not work on
    the device.

    The conditions are those of jax 0.10 to 0.12. `jax.nn.dot_product_attention` with cuDNN needs an NVIDIA GPU from
    Ampere on, 16 bit, head widths of at most 128 that are multiples of 8 and, with segments, an even sequence length.
    Segments are passed to cuDNN as a bias of one (T, T) matrix for each row. It also takes packed rows by offsets, but
    JAX offers that in no public function, needs the number of documents of a row in advance, and let it read wrong keys
    for grouped queries (jax-ml/jax#39521). Trainkit's kernels need no bias.
    """
    if special and device.platform in ("gpu", "tpu"):
        return AttentionChoice("blockwise", f"no flash attention that trainkit uses has {special}")
    match device.platform:
        case "gpu":
            return _for_gpu(device, compute, head_width, sequence_length, segments, own, broken)
        case "tpu":
            if own:
                return AttentionChoice("blockwise", f"no flash attention that trainkit uses has {own}")
            if why := _first(
                (
                    head_width % FLASH_BLOCK,
                    f"Splash needs a head width that is a multiple of {FLASH_BLOCK}, found {head_width}",
                ),
                (
                    sequence_length is None or sequence_length % FLASH_BLOCK,
                    f"Splash needs lengths that are multiples of {FLASH_BLOCK}, found {sequence_length or 'several'}",
                ),
            ):
                return AttentionChoice("xla", why)
            return AttentionChoice("splash", "flash attention")
        case _:
            return AttentionChoice("blockwise", f"there is no flash attention for {device.platform}")


def _for_gpu(
    device: Capabilities,
    compute: jnp.dtype,
    head_width: int,
    sequence_length: int | None,
    segments: bool,
    own: str | None,
    broken: str,
) -> AttentionChoice:
    """Return trainkit's kernels where cuDNN's lack a feature or need a bias, cuDNN's elsewhere."""
    capability = device.compute_capability
    needs = f"compute capability {_version_text(FLASH_CAPABILITY)}, {device.kind} has {_version_text(capability)}"
    slow: AttentionName = "blockwise" if own else "xla"
    if why := _first(
        (capability is None, f"flash attention needs an NVIDIA GPU, found {device.kind}"),
        (capability and capability < FLASH_CAPABILITY, f"flash attention needs {needs}"),
        (
            compute not in (jnp.bfloat16, jnp.float16),
            f"flash attention needs 16 bit, the products are in {jnp.dtype(compute).name}",
        ),
        (head_width % 8, f"flash attention needs a head width that is a multiple of 8, found {head_width}"),
        (head_width > OWN_WIDTH, f"flash attention needs a head width of at most {OWN_WIDTH}, found {head_width}"),
    ):
        return AttentionChoice(slow, why)
    wide = f"heads of {head_width}" if head_width > CUDNN_WIDTH else None
    if because := own or ("packed rows" if segments else wide):
        if not broken:
            return AttentionChoice("pallas", f"flash attention by trainkit's kernels, for {because}")
        other: AttentionName = "cudnn"
        why = "flash attention; segments cost a mask of length x length for each row"
        if own or wide:
            other, why = slow, f"cuDNN's flash attention lacks {own or wide}"
        elif sequence_length is not None and sequence_length % 2:
            other, why = "xla", f"cuDNN needs an even sequence length for packed rows, found {sequence_length}"
        lost = f"trainkit's kernels for {because} do not work here: {broken}; attention is {other}, which is slower"
        return AttentionChoice(other, why, lost)
    return AttentionChoice("cudnn", "flash attention")


def _version_text(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))


def _first(*reasons: tuple[object, str]) -> str | None:
    """Return the first reason that holds."""
    return next((why for holds, why in reasons if holds), None)


def require_precision(compute: str, device: Capabilities) -> None:
    """Raise TrainkitError if the device cannot multiply in `compute`."""
    capability = device.compute_capability
    if compute == "bfloat16" and not _has_bfloat16(device):
        raise TrainkitError(
            f"bfloat16 needs an NVIDIA GPU of compute capability {_version_text(BFLOAT16_CAPABILITY)} or later; "
            f"{device.kind} has {_version_text(capability)}",
            where="precision.compute",
            hint='precision.compute = "float16", which "auto" uses there, or "float32"',
        )
    if compute == "fp8" and (device.platform != "gpu" or capability is None or capability < FP8_CAPABILITY):
        has = f"compute capability {_version_text(capability)}" if capability else "no units for it"
        least = _version_text(FP8_CAPABILITY)
        raise TrainkitError(
            f"fp8 needs an NVIDIA GPU of compute capability {least} or later; {device.kind} has {has}",
            where="precision.compute",
            hint='precision.compute = "auto" uses the fastest dtype of this device',
        )


def _has_bfloat16(device: Capabilities) -> bool:
    """Return whether the device multiplies bfloat16; a GPU that is not NVIDIA's counts as one that does."""
    return device.compute_capability is None or device.compute_capability >= BFLOAT16_CAPABILITY


def capabilities() -> Capabilities:
    """Return what the first device can do."""
    device = jax.devices()[0]
    parts = str(device.compute_capability).split(".") if device.platform == "gpu" else []
    # NVIDIA's is a pair of numbers, AMD's the name of an architecture
    numbers = [int(part) for part in parts if part.isdecimal()]
    capability = (numbers[0], numbers[1]) if len(numbers) == 2 else None
    return Capabilities(platform=device.platform, kind=device.device_kind, compute_capability=capability)
