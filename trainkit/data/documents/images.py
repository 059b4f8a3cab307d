"""Images as pieces: decoded, upright, cropped to one size, as bytes in rows of RGB."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.data.documents.labels import labels_of
from trainkit.data.documents.pieces import Piece, RowContext
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.labelled_documents import Image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def width(document: Image) -> int:
    """Return the bytes that an image is stored as."""
    height, width = document.size
    return height * width * 3


def decode(document: Image, rows_NW: np.ndarray) -> dict[str, np.ndarray]:
    """Return the images of stored rows, uint8 (N, height, width, 3)."""
    return {"images": rows_NW.reshape(len(rows_NW), *document.size, 3)}


def make(document: Image, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pixels of a row's image, uint8 (height × width × 3,), with its label.

    The image is scaled so that it covers `document.size`, and cut to it at the centre (bicubic, area-aware where it
    shrinks). It is rotated as its EXIF data say; transparent parts become white; an animation gives its first frame;
    16 bits of grey become 8.

    The row's image is bytes, a path, or `{"bytes": …, "path": …}`, either of which may be null.
    """
    if document.image not in row:
        return missing_key(
            document.image, row, "document.image", usual=("image", "img", "picture", "path", "file_name")
        )
    labels = labels_of(document)
    assert labels is not None
    label = labels.of_row(row)
    if isinstance(label, tuple):
        return label
    found = _content(document.image, row[document.image], context.base)
    if isinstance(found[0], str):
        return found
    content, name = found
    pixels = _pixels(content, document.size)
    if isinstance(pixels, str):
        return f"{name} {pixels}", ""
    return [Piece(index=index, ids=pixels.reshape(-1), label=label)]


def _content(key: str, value: Any, base: str) -> tuple[bytes, str] | Problem:
    """Return (the bytes of an image's file, its name in messages), or what is wrong."""
    path = None
    if isinstance(value, Mapping):
        path, value = value.get("path"), value.get("bytes")
        if value is None:
            value = path
    if isinstance(value, bytes):
        return value, f"the image {path}" if path else f"the image in '{key}'"
    if not isinstance(value, str):
        return (
            f"'{key}' is {kind_of(value)}, not an image",
            'images are bytes, a path, or {"bytes": …, "path": …} as Hugging Face datasets stores them',
        )
    path = os.path.join(base, value)
    try:
        with open(path, "rb") as file:
            return file.read(), f"the image {path}"
    # a path from a row may also hold what no path can, such as a null character
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"cannot read the image {path}: {reason}", f"relative paths are relative to {base}"


def _pixels(content: bytes, size: tuple[int, int]) -> np.ndarray | str:
    """Return the pixels, uint8 (height, width, 3), or what is wrong with the image."""
    from PIL import Image as images
    from PIL import ImageOps

    height, width = size
    try:
        with warnings.catch_warnings():
            # Of damaged metadata PIL only warns, once for every image; of what is too large it warns up to twice the
            # size at which it raises.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with images.open(io.BytesIO(content)) as image:
                upright = _rgb(ImageOps.exif_transpose(image))
                fitted = ImageOps.fit(upright, (width, height), images.Resampling.BICUBIC)
        return np.asarray(fitted, np.uint8)
    except images.UnidentifiedImageError:
        return "has no format that PIL knows"
    # each of PIL's decoders raises what it likes for content that is damaged: SyntaxError, struct.error, EOFError …
    except Exception as error:
        return f"cannot be decoded: {str(error) or type(error).__name__}"


def _rgb(image: Picture) -> Picture:
    """Return an image in 8 bits of RGB. Raises ValueError if nothing says which values are black and white."""
    from PIL import Image as images

    if image.mode.startswith("I;16"):
        # PIL's own conversion takes everything above 255 for white
        return images.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and nothing says which value is white; save it with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
