"""What this process has to compute on, and the best way to compute on it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from trainkit.errors import TrainkitError
from trainkit.parallel.host import available_memory
from trainkit.parallel.reasons import why_no_gpu
from trainkit.plan import Devices

#: See `models.attention.causal_attention`.
AttentionName: TypeAlias = Literal["blockwise", "xla", "cudnn", "splash"]
#: Ada and Hopper are the first with units for 8-bit floating point, Ampere for which cuDNN has flash attention.
FP8_CAPABILITY, FLASH_CAPABILITY = (8, 9), (8, 0)
#: Positions that Splash takes at once; the widths of its heads are in these too.
FLASH_BLOCK = 128


class AttentionChoice(NamedTuple):
    """An implementation, and why no faster one; `reason` is for people."""

    name: AttentionName
    reason: str


class Capabilities(NamedTuple):
    """What depends on the kind of a device; `compute_capability` is NVIDIA's, None elsewhere."""

    platform: str
    kind: str
    compute_capability: tuple[int, int] | None


def local(platform: str = "auto") -> Devices:
    """The devices of this machine as the plan wants to know them; memory in bytes where the device tells. That of a CPU
    is what the host has left.

    Raises:
        TrainkitError: they are not of the `platform` that the recipe asks for.
    """
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")  # a GPU is not even opened: its memory is somebody else's
    try:
        devices = jax.devices()
    except RuntimeError as error:  # of a platform that JAX_PLATFORMS names
        raise _unavailable(platform, str(error)) from error
    if platform not in ("auto", devices[0].platform):
        raise _unavailable(platform, f"JAX found {devices[0].device_kind} only")
    memory = (devices[0].memory_stats() or {}).get("bytes_limit")
    if memory is None and devices[0].platform == "cpu" and (available := available_memory()) is not None:
        memory = available // len(devices)
    return Devices(
        count=len(devices),
        platform=devices[0].platform,
        kind=devices[0].device_kind,
        memory_bytes=memory,
    )


def _unavailable(platform: str, found: str) -> TrainkitError:
    problem, hint = why_no_gpu() if platform == "gpu" else (found, "")
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
) -> AttentionChoice:
    """The fastest attention that this device has for these shapes; `sequence_length` None where it varies.

    `special` names what of the model's attention no kernel has, in the plural: see `models.attention.causal_attention`.

    The conditions are those of jax 0.10 to 0.12: `jax.nn.dot_product_attention` with cuDNN wants an NVIDIA GPU from
    Ampere on, 16 bit, heads of at most 128 in eights, and, where there are segments, rows of an even number of
    positions. Segments reach cuDNN as a
    bias of one (T, T) matrix for each row: it takes packed rows by offsets as well, but JAX offers that in no public
    function, wants the number of documents of a row beforehand, and had it read wrong keys for grouped queries
    (jax-ml/jax#39521).
    """
    if special and device.platform in ("gpu", "tpu"):
        return AttentionChoice("blockwise", f"no flash attention that is used here has {special}")
    match device.platform:
        case "gpu":
            capability = device.compute_capability
            half = compute in (jnp.bfloat16, jnp.float16)
            odd = segments and sequence_length is not None and sequence_length % 2
            if why := _first(
                (capability is None, f"cuDNN's needs an NVIDIA GPU, and this is {device.kind}"),
                (
                    capability and capability < FLASH_CAPABILITY,
                    f"cuDNN's needs compute capability {_dotted(FLASH_CAPABILITY)}, and {device.kind} has "
                    f"{_dotted(capability)}",
                ),
                (not half, f"cuDNN's needs 16 bit, and the products are in {jnp.dtype(compute).name}"),
                (head_width % 8, f"cuDNN's needs heads in eights, and these are {head_width} wide"),
                (head_width > 128, f"cuDNN's needs heads of at most 128, and these are {head_width} wide"),
                (odd, f"cuDNN's needs an even length for packed rows, and this is {sequence_length}"),
            ):
                return AttentionChoice("xla", why)
            mask = "; segments cost it a mask of length x length for each row" if segments else ""
            return AttentionChoice("cudnn", f"flash attention{mask}")
        case "tpu":
            if why := _first(
                (head_width % FLASH_BLOCK, f"Splash needs heads in 128s, and these are {head_width} wide"),
                (
                    sequence_length is None or sequence_length % FLASH_BLOCK,
                    f"Splash needs a length in 128s, and this is {sequence_length or 'not always the same'}",
                ),
            ):
                return AttentionChoice("xla", why)
            return AttentionChoice("splash", "flash attention")
        case _:
            return AttentionChoice("blockwise", f"there is no flash attention for {device.platform}")


def _dotted(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))


def _first(*reasons: tuple[object, str]) -> str | None:
    """The first reason that holds."""
    return next((why for holds, why in reasons if holds), None)


def require_precision(compute: str, device: Capabilities) -> None:
    """Raises TrainkitError where the device cannot multiply in `compute`, telling what it has."""
    capability = device.compute_capability
    if compute == "fp8" and (device.platform != "gpu" or capability is None or capability < FP8_CAPABILITY):
        has = f"compute capability {_dotted(capability)}" if capability else "none of these units"
        least = _dotted(FP8_CAPABILITY)
        raise TrainkitError(
            f"fp8 needs an NVIDIA GPU of compute capability {least} or later; {device.kind} has {has}",
            where="precision.compute",
            hint='precision.compute = "auto" takes the fastest that this device has',
        )


def capabilities() -> Capabilities:
    """Those of the first device."""
    device = jax.devices()[0]
    told = str(device.compute_capability).split(".") if device.platform == "gpu" else []
    # NVIDIA's is a pair of numbers, AMD's the name of an architecture
    numbers = [int(part) for part in told if part.isdecimal()]
    capability = (numbers[0], numbers[1]) if len(numbers) == 2 else None
    return Capabilities(platform=device.platform, kind=device.device_kind, compute_capability=capability)
