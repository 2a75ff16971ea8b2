"""Pictures from bytes: what they become, and what is refused."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from metamirror.data.image_set import SUFFIXES
from metamirror.data.readers.images import MAX_PIXELS, BadImage, decode

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP"}


def save(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 40, height: int = 30) -> Image.Image:
    """Red grows to the right, green downwards, blue is constant."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    pixels[..., 2] = 77
    return Image.fromarray(pixels)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *more, chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_height_width_channels(suffix: str):
    options = {"lossless": True} if suffix == ".webp" else {}
    data = save(gradient(), FORMATS[suffix], **options)
    pixels = decode(data, "a" + suffix)
    assert pixels.shape == (30, 40, 3)
    assert pixels.dtype == np.uint8
    off = np.abs(pixels.astype(int) - np.asarray(gradient()).astype(int)).mean()
    assert off < (4 if "jp" in suffix else 0.001)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PPM", "ICO", "TGA", "PDF"])
def test_other_formats_are_refused(kind: str):
    with pytest.raises(BadImage, match=r"a\.png.*neither png"):
        decode(save(gradient(), kind), "a.png")


def test_grey_stays_grey_and_colour_colour_unless_asked():
    grey, colour = save(gradient().convert("L")), save(gradient())
    assert decode(grey, "a.png").shape == (30, 40, 1)
    assert decode(colour, "a.png").shape == (30, 40, 3)
    assert decode(grey, "a.png", channels=3).shape == (30, 40, 3)
    assert decode(colour, "a.png", channels=1).shape == (30, 40, 1)


def test_luminance_weighs_green_more_than_red_and_red_more_than_blue():
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    values = [
        decode(save(Image.new("RGB", (1, 1), c)), "a.png", channels=1).item() for c in colours
    ]
    assert values == [76, 150, 29, 255]


def test_the_middle_is_cut_out_and_a_fitting_side_is_not_resampled():
    noise = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    data = save(Image.fromarray(noise))
    assert np.array_equal(decode(data, "a.png", size=20), noise[:, 5:25])
    upright = save(Image.fromarray(noise.transpose(1, 0, 2)))
    assert np.array_equal(decode(upright, "a.png", size=20), noise.transpose(1, 0, 2)[5:25])


@pytest.mark.parametrize("shape", [(100, 60), (60, 100), (64, 64), (9, 9), (3, 90)])
def test_every_picture_comes_out_square(shape: tuple[int, int]):
    assert decode(save(gradient(*shape)), "a.png", size=28).shape == (28, 28, 3)


def test_shrinking_averages_rather_than_drops():
    lines = np.zeros((105, 105), np.uint8)
    lines[:, ::3] = 255
    pixels = decode(save(Image.fromarray(lines).convert("1")), "a.png", size=28)
    assert np.abs(pixels[:, 2:-2].astype(float) - 85).max() < 30


def test_an_extreme_shape_needs_no_extreme_memory():
    data = save(Image.new("L", (60_000, 1), 9))
    assert decode(data, "a.png", size=84).shape == (84, 84, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_cameras_orientation_is_applied(orientation: int):
    upright = np.asarray(gradient())
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    assert np.array_equal(decode(data, "a.png"), upright)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
def test_broken_notes_of_a_camera_do_not_spoil_a_sound_picture(kind: str):
    for exif in (b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\7" * 40):
        assert decode(save(gradient(), kind, exif=exif), "a").shape == (30, 40, 3)


def test_transparent_parts_lie_on_white():
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    grey = Image.new("LA", (4, 4), (0, 0))
    assert (decode(save(clear), "a.png") == 255).all()
    assert (decode(save(half), "a.png") == 127).all()
    assert decode(save(grey), "a.png").shape == (4, 4, 1)
    assert (decode(save(grey), "a.png") == 255).all()


def test_a_transparent_colour_lies_on_white():
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([200, 0, 0, 0, 0, 200])
    assert decode(save(palette), "a.png")[0, 0].tolist() == [200, 0, 0]
    assert decode(save(palette, transparency=0), "a.png")[0, 0].tolist() == [255, 255, 255]
    colour = Image.new("RGB", (2, 2), (1, 2, 3))
    assert decode(save(colour, transparency=(1, 2, 3)), "a.png")[0, 0].tolist() == [255, 255, 255]
    grey = Image.new("L", (2, 2), 7)
    assert decode(save(grey, transparency=7), "a.png")[0, 0].tolist() == [255]


def test_sixteen_bits_are_scaled_not_clipped():
    rows = b"\0" + struct.pack(">3H", 0, 32768, 65535)
    assert decode(png(3, 1, 16, 0, rows), "a.png").flatten().tolist() == [0, 128, 255]
    colour = b"\0" + struct.pack(">3H", 0, 32768, 65535)
    assert decode(png(1, 1, 16, 2, colour), "a.png").flatten().tolist() == [0, 128, 255]
    with_alpha = b"\0" + struct.pack(">2H", 32768, 65535)
    assert decode(png(1, 1, 16, 4, with_alpha), "a.png").flatten().tolist() == [128]


def test_one_bit_is_black_and_white():
    pixels = decode(save(Image.fromarray(np.eye(8) > 0)), "a.png")
    assert np.array_equal(pixels[..., 0], np.eye(8) * 255)


def test_print_colours_become_screen_colours():
    yellow = save(Image.new("CMYK", (8, 8), (0, 0, 255, 0)), "JPEG", quality=95)
    assert np.abs(decode(yellow, "a.jpg").astype(int) - [255, 255, 0]).max() < 8
    assert decode(yellow, "a.jpg", channels=1).shape == (8, 8, 1)


def test_a_palette_of_greys_is_grey():
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([255, 0, 0, 90, 90, 90])
    assert decode(save(palette), "a.png").shape == (2, 2, 1), "the red is never used"
    palette.putpixel((0, 0), 0)
    assert decode(save(palette), "a.png").shape == (2, 2, 3)


def huge(kind: str, side: int) -> bytes:
    if kind == "PNG":
        return png(side, side, 8, 2, b"\0" * 100)
    if kind == "BMP":
        data = bytearray(save(Image.new("RGB", (2, 2)), "BMP"))
        data[18:26] = struct.pack("<ii", side, side)
        return bytes(data)
    if kind == "JPEG":
        side = min(side, 65500)
        data = bytearray(save(Image.new("RGB", (8, 8)), "JPEG"))
        place = data.index(b"\xff\xc0") + 5
        data[place : place + 4] = struct.pack(">HH", side, side)
        return bytes(data)
    side = min(side, 2**16 - 1)
    body = bytearray(save(Image.new("RGBA", (8, 8), (1, 2, 3, 4)), "WEBP"))
    body[24:30] = (side - 1).to_bytes(3, "little") * 2
    return bytes(body)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "JPEG", "WEBP"])
@pytest.mark.parametrize("side", [7_100, 11_000, 100_000])
def test_a_picture_that_claims_too_many_pixels_is_not_decoded(kind: str, side: int):
    data = huge(kind, side)
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match=r"a\.xyz.*pixels") as caught:
            decode(data, "a.xyz", size=84)
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()
    assert f"{MAX_PIXELS:,}" in str(caught.value)


def test_no_warning_of_pillow_comes_through(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert decode(save(gradient()), "a.png", size=8).shape == (8, 8, 3)
    assert not seen


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_a_picture_that_was_cut_short_is_named(kind: str):
    noise = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    data = save(Image.fromarray(noise), kind)
    for length in range(0, len(data) - 20, 13):
        with pytest.raises(BadImage, match=r"cut\.xyz.*again"):
            decode(data[:length], "cut.xyz")
    # Of a png the last 20 bytes hold no pixels, and of a bmp the last 2 or 3.
    for length in range(len(data) - 20, len(data)):
        with contextlib.suppress(BadImage):
            assert np.array_equal(decode(data[:length], "cut.xyz"), decode(data, "whole"))


VALID = [save(gradient(), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")] + [
    save(gradient().quantize(8), transparency=0),
    save(gradient().convert("1"), "BMP"),
    save(gradient().convert("L"), "JPEG", progressive=True, exif=b"Exif\0\0II*\0\x08\0\0\0"),
]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_picture_or_a_named_error(data: st.DataObject):
    content = bytearray(data.draw(st.sampled_from(VALID)))
    places = st.one_of(st.integers(0, 80), st.integers(0, len(content) - 1))
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=5)):
        content[place] = value
    with contextlib.suppress(BadImage):
        assert decode(bytes(content), "fuzz", size=16).shape in ((16, 16, 1), (16, 16, 3))


def test_threads_do_not_disturb_the_warning_filters():
    before = list(warnings.filters)
    data = save(gradient(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")

    def work() -> None:
        for _ in range(50):
            decode(data, "a.jpg", size=8)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
