"""Labelled texts and images become pieces that hold their label once, or are refused with what is wrong."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as images

from trainkit.data.documents import pieces as pieces_module
from trainkit.data.documents.images import make
from trainkit.data.documents.labelled import make_labelled
from trainkit.data.documents.pieces import RowContext
from trainkit.recipe.sections.labelled_documents import Image, Labelled


def labelled(row: dict[str, Any], **fields: Any):
    return make_labelled(Labelled(type="labelled", **fields), row, 3)


@given(st.text(max_size=9), st.text(max_size=9), st.integers(0, 2**31 - 1))
def test_a_pair_is_one_document_whose_second_text_is_marked(one, two, label):
    pieces = labelled({"a": one, "b": two, "label": label}, texts=("a", "b"))
    assert isinstance(pieces, list)
    assert "".join(piece.text for piece in pieces if not piece.second) == one
    assert "".join(piece.text for piece in pieces if piece.second) == two
    assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [piece.label for piece in pieces] == [label] + [-1] * (len(pieces) - 1)
    assert {piece.index for piece in pieces} == {3}
    assert sum(piece.bytes for piece in pieces) == len((one + two).encode())


def test_long_texts_are_cut_and_stay_one_document(monkeypatch):
    monkeypatch.setattr(pieces_module, "PIECE", 10)
    pieces = labelled({"a": "some words " * 3, "b": "others " * 4, "label": 1}, texts=("a", "b"))
    assert [piece.second for piece in pieces] == [False] * 4 + [True] * 3
    assert [piece.label for piece in pieces] == [1] + [-1] * 6
    assert sum(piece.first for piece in pieces) == sum(piece.last for piece in pieces) == 1


@pytest.mark.parametrize(
    ("found", "classes", "label"),
    [(0, (), 0), (7, (), 7), (1, ("no", "yes"), 1), ("yes", ("no", "yes"), 1), (True, (), 1), (False, ("a",), 0)],
)
def test_a_label_is_a_number_or_the_name_of_a_class(found, classes, label):
    (piece,) = labelled({"text": "a", "label": found}, classes=classes)
    assert piece.label == label
    assert type(piece.label) is int


@pytest.mark.parametrize(
    ("row", "classes", "problem", "hint"),
    [
        ({"txet": "a", "label": 0}, (), "has no 'text'; found: 'txet', 'label'", 'did you mean "txet"?'),
        ({"sentence": "a", "label": 0}, (), "has no 'text'; found: 'sentence'", 'did you mean "sentence"?'),
        ({"text": None, "label": 0}, (), "'text' is null, not a string", "document.texts"),
        ({"text": "a"}, (), "has no 'label'; found: 'text'", "document.label names it"),
        ({"text": "a", "labels": 0}, (), "has no 'label'", 'did you mean "labels"?'),
        ({"text": "a", "label": -1}, (), "'label' is -1; labels count from 0", "use a split that has labels"),
        ({"text": "a", "label": 2**31}, (), "labels are less than 2147483648", ""),
        ({"text": "a", "label": 1.0}, (), "'label' is 1.0, not a whole number", ""),
        ({"text": "a", "label": None}, ("x",), "'label' is null, neither a whole number nor one of the classes", ""),
        ({"text": "a", "label": [1]}, (), "'label' is a list, not a whole number", ""),
        ({"text": "a", "label": "1"}, (), "'label' is '1', not a number", 'classes = ["1", …]'),
        ({"text": "a", "label": 2}, ("x", "y"), "is 2, but there are 2 classes: 'x', 'y'", "from 0 to 1"),
        ({"text": "a", "label": "postive"}, ("negative", "positive"), "none of the classes", "mean 'positive'?"),
        ({"text": "a", "label": "positive"}, ("negative", "no"), "none of the classes", "add it to document.classes"),
        ({"text": "a", "label": "B"}, ("a", "b"), "none of the classes: 'a', 'b'", "did you mean 'b'?"),
        ({"text": "a", "label": "z"}, tuple("abcdefghijk"), "'h' and 3 more", "add it to document.classes"),
    ],
)
def test_a_row_that_cannot_be_labelled_is_reported(row, classes, problem, hint):
    found = labelled(row, classes=classes)
    assert isinstance(found, tuple)
    assert problem in found[0]
    assert hint in found[1]


def picture(width: int = 6, height: int = 4, mode: str = "RGB") -> images.Image:
    """Another colour everywhere."""
    rgb = np.stack(np.meshgrid(np.arange(height) * 40, np.arange(width) * 40, indexing="ij"), -1)
    return images.fromarray(np.concatenate([rgb, rgb[..., :1] * 0 + 9], -1).astype(np.uint8)).convert(mode)


def encoded(image: images.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def imaged(found: Any, *, size: tuple[int, int] = (4, 6), base: str = "", **fields: Any):
    return make(Image(type="image", size=size, **fields), {"image": found, "label": 2}, 5, RowContext(base))


def pixels(found: Any, *, size: tuple[int, int] = (4, 6)) -> np.ndarray:
    made = imaged(found, size=size)
    assert isinstance(made, list), made
    (piece,) = made
    assert piece.ids is not None
    assert piece.ids.dtype == np.uint8
    assert piece.ids.shape == (size[0] * size[1] * 3,)
    assert (piece.index, piece.label, piece.first, piece.last, piece.text, piece.bytes) == (5, 2, True, True, "", 0)
    return piece.ids.reshape(*size, 3)


def test_an_image_of_the_size_itself_is_its_pixels_in_rows():
    assert (pixels(encoded(picture())) == np.asarray(picture())).all()


@pytest.mark.parametrize("relative", [True, False])
def test_bytes_and_paths_and_both_are_one_image(tmp_path, relative):
    content = encoded(picture())
    (tmp_path / "a.png").write_bytes(content)
    name = "a.png" if relative else str(tmp_path / "a.png")
    expected = imaged(content)[0].ids
    missing = {"bytes": content, "path": "not there"}
    for found in (name, {"bytes": None, "path": name}, {"path": name}, missing, {"bytes": content, "path": None}):
        assert (imaged(found, base=str(tmp_path))[0].ids == expected).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_an_image_of_any_shape_covers_the_size_and_is_cut_at_its_centre(width, height, rows, columns):
    assert (pixels(encoded(images.new("RGB", (width, height), (7, 8, 9))), size=(rows, columns)) == (7, 8, 9)).all()
    shown = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    upright, turned = (
        pixels(encoded(images.fromarray(each)), size=(rows, columns)).astype(int) for each in (shown, shown[::-1, ::-1])
    )
    assert abs(upright - turned[::-1, ::-1]).max() <= 2


def test_what_needs_no_scaling_is_only_cut():
    shown = np.asarray(picture(6, 4))
    assert (pixels(encoded(picture(6, 4)), size=(4, 4)) == shown[:, 1:5]).all()
    assert (pixels(encoded(picture(6, 4)), size=(2, 6)) == shown[1:3]).all()


def test_an_image_is_turned_as_its_camera_says():
    turned = images.Exif()
    turned[0x0112] = 6
    found = pixels(encoded(picture(), exif=turned), size=(6, 4))
    assert (found == np.asarray(picture().rotate(-90, expand=True))).all()


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_every_kind_of_colour_becomes_rgb(mode):
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    shown = picture(mode=mode)
    assert (pixels(encoded(shown, kind)) == np.asarray(shown.convert("RGB"))).all()


def test_what_is_transparent_is_white():
    for mode in ("RGBA", "LA"):
        clear = picture(mode="RGB").convert(mode)
        clear.putalpha(0)
        assert (pixels(encoded(clear)) == 255).all()
    half = images.new("RGBA", (6, 4), (0, 0, 0, 128))
    assert (pixels(encoded(half)) == 127).all()
    keyed = images.new("P", (6, 4), 1)
    keyed.putpalette([10, 20, 30, 40, 50, 60])
    assert (pixels(encoded(keyed, transparency=1)) == 255).all()
    assert (pixels(encoded(keyed, transparency=0)) == (40, 50, 60)).all()


def test_sixteen_bits_of_grey_become_eight():
    grey = np.array([[0, 257 * 100, 65535]], np.uint16)
    assert pixels(encoded(images.fromarray(grey)), size=(1, 3))[0, :, 0].tolist() == [0, 100, 255]


def test_an_image_has_a_label_or_none():
    found = make(Image(type="image", size=(4, 6), label=False), {"image": encoded(picture())}, 0, RowContext())
    assert found[0].label == -1
    named = Image(type="image", size=(4, 6), classes=("cat", "dog"))
    assert make(named, {"image": encoded(picture()), "label": "dog"}, 0, RowContext())[0].label == 1
    problem, hint = make(named, {"image": encoded(picture()), "label": "dgo"}, 0, RowContext())
    assert "'dgo', which is none of the classes" in problem
    assert "did you mean 'dog'?" in hint


def bomb(width: int, height: int) -> bytes:
    """The head of a PNG that says it is large."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (b"", "the image in 'image' has no format that PIL knows"),
        (b"no image", "the image in 'image' has no format that PIL knows"),
        ({"bytes": b"no image", "path": "x/cat.png"}, "the image x/cat.png has no format that PIL knows"),
        (encoded(picture(60, 40))[:-60], "cannot be decoded: "),
        (encoded(picture(60, 40), "JPEG")[:-60], "cannot be decoded: image file is truncated"),
        (bomb(10_000, 10_000), "cannot be decoded: Image size (100000000 pixels) exceeds limit"),
        (bomb(1 << 20, 1 << 20), "cannot be decoded: Image size (1099511627776 pixels) exceeds limit"),
        (encoded(images.new("F", (3, 3)), "TIFF"), "cannot be decoded: its pixels have 32 bits"),
        (7, "'image' is a number, not an image"),
        (None, "'image' is null, not an image"),
        ({"bytes": None, "path": None}, "'image' is null, not an image"),
        ("a\0b", "cannot read the image "),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(found, problem):
    refused = imaged(found)
    assert isinstance(refused, tuple)
    assert problem in refused[0]


def test_an_image_that_is_not_there_is_reported_with_its_path(tmp_path):
    problem, hint = imaged("cat.png", base=str(tmp_path))
    assert problem == f"cannot read the image {tmp_path / 'cat.png'}: No such file or directory"
    assert hint == f"relative paths are relative to {tmp_path}"
    problem, hint = make(Image(type="image"), {"img": b"", "label": 0}, 0, RowContext())
    assert problem == "has no 'image'; found: 'img', 'label'"
    assert hint.startswith('did you mean "img"?')
