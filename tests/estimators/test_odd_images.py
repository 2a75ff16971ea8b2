"""Image files of every kind that people have: read as they look, or refused in one line."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metamirror.data.readers.images import MAX_PIXELS
from metamirror.estimators.inputs.images import Images

SIZE = 28
COLOUR, GREY = Images(channels=3, size=SIZE), Images(channels=1, size=SIZE)

Saved = Callable[[Path], None]


def halves(left: object, right: object, mode: str = "RGB") -> Image.Image:
    """An image of two halves."""
    image = Image.new(mode, (SIZE, SIZE), left)
    image.paste(right, (SIZE // 2, 0, SIZE, SIZE))
    return image


RED, BLUE = (200, 30, 20), (10, 40, 220)
FLAT = halves(RED, BLUE)


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: a viewer turns it clockwise
    FLAT.rotate(90).save(path, exif=exif, quality=95)


def frames(path: Path, **options: object) -> None:
    """An animation that begins with the image, and goes on with a black one."""
    FLAT.save(path, save_all=True, append_images=[Image.new("RGB", (SIZE, SIZE))], **options)


def cmyk(path: Path) -> None:
    FLAT.convert("CMYK").save(path, quality=95)


def see_through(path: Path) -> None:
    """A red half, and one that is see-through, whatever colour is stored there."""
    halves((*RED, 255), (0, 0, 0, 0), "RGBA").save(path)


def see_through_palette(path: Path) -> None:
    image = halves(RED, (0, 0, 0)).quantize(2)
    clear = image.getpixel((SIZE - 1, 0))
    image.save(path, transparency=clear)


WHITE = (255, 255, 255)
READ: dict[str, tuple[str, Saved, tuple, tuple]] = {
    "plain": ("a.png", FLAT.save, RED, BLUE),
    "turned": ("a.jpg", turned, RED, BLUE),
    "cmyk": ("a.jpg", cmyk, RED, BLUE),
    "palette": ("a.png", lambda p: FLAT.quantize(4).save(p), RED, BLUE),
    "palette in bmp": ("a.bmp", lambda p: FLAT.quantize(4).save(p), RED, BLUE),
    "animated png": ("a.png", frames, RED, BLUE),
    "animated webp": ("a.webp", lambda p: frames(p, lossless=True), RED, BLUE),
    "progressive": ("a.jpg", lambda p: FLAT.save(p, progressive=True, quality=95), RED, BLUE),
    "see-through": ("a.png", see_through, RED, WHITE),
    "see-through webp": ("a.webp", see_through, RED, WHITE),
    "see-through palette": ("a.png", see_through_palette, RED, WHITE),
    "white on nothing": (
        "a.png",
        halves((255, 255, 255, 255), (0, 0, 0, 0), "RGBA").save,
        WHITE,
        (0, 0, 0),
    ),
    "one bit": ("a.png", halves(0, 1, "1").save, (0, 0, 0), WHITE),
    "grey with alpha": ("a.png", halves((60, 255), (60, 0), "LA").save, (60, 60, 60), WHITE),
    "jpeg with another name": (
        "a.png",
        lambda p: FLAT.save(p, "jpeg", quality=95),
        RED,
        BLUE,
    ),
}


def sixteen_bits(left: int, right: int) -> Saved:
    values = np.full((SIZE, SIZE), left, np.uint16)
    values[:, SIZE // 2 :] = right
    return Image.fromarray(values).save


for low, high in ((0, 65535), (13107, 52428), (1000, 60000)):
    ends = tuple((round(v / 257),) * 3 for v in (low, high))
    READ[f"16 bits, {low} to {high}"] = ("a.png", sixteen_bits(low, high), *ends)


@pytest.mark.parametrize("case", READ)
def test_an_image_is_read_as_it_looks(case: str, tmp_path: Path):
    name, save, left, right = READ[case]
    save(tmp_path / name)
    wanted = np.stack([left, right]).astype(float)
    found = 255 * COLOUR.read([tmp_path / name])[0].numpy()
    ends = np.stack([found[:, :, :10].mean((1, 2)), found[:, :, -10:].mean((1, 2))])
    # Compression and inks change colours a little.
    np.testing.assert_allclose(ends, wanted, atol=8)
    with Image.open(tmp_path / name) as image:
        assert np.allclose(255 * COLOUR.read([image])[0].numpy(), found), "PIL's image differs"
    grey = 255 * GREY.read([tmp_path / name])[0, 0].numpy()
    luminance = wanted @ [0.299, 0.587, 0.114]
    assert grey[:, :10].mean() == pytest.approx(luminance[0], abs=8)
    assert grey[:, -10:].mean() == pytest.approx(luminance[1], abs=8)


def deep_png(colour_type: int, values: tuple[int, ...]) -> Saved:
    """Write 16 bits for each of several channels, which PIL can read and not write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    def save(path: Path) -> None:
        head = struct.pack(">IIBBBBB", SIZE, SIZE, 16, colour_type, 0, 0, 0)
        line = b"\0" + struct.pack(f">{len(values)}H", *values) * SIZE
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(line * SIZE)), (b"IEND", b""))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))

    return save


READ["16 bits in colour"] = ("a.png", deep_png(2, (51400, 7710, 5140)), RED, RED)
for kind, colour_type, values in (
    ("colour", 2, (0, 0, 0)),
    ("colour and alpha", 6, (0, 0, 0, 65535)),
    ("grey and alpha", 4, (0, 65535)),
):
    READ[f"16 bits in {kind}, black"] = (
        "a.png",
        deep_png(colour_type, values),
        (0, 0, 0),
        (0, 0, 0),
    )


def cut(kind: str, share: float) -> Saved:
    def save(path: Path) -> None:
        file = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file, kind)
        path.write_bytes(file.getvalue()[: int(share * len(file.getvalue()))])

    return save


def huge(path: Path) -> None:
    Image.new("1", (10_000, MAX_PIXELS // 10_000 + 1)).save(path)


REFUSED: dict[str, tuple[str, Saved, str]] = {
    "half a png": ("a.png", cut("png", 0.5), "is damaged"),
    "half a jpeg": ("a.jpg", cut("jpeg", 0.5), "is damaged"),
    "half a webp": ("a.webp", cut("webp", 0.5), "damaged"),
    "half a bmp": ("a.bmp", cut("bmp", 0.5), "is damaged"),
    "empty": ("a.png", lambda p: p.write_bytes(b""), "is empty, damaged, or neither png"),
    "huge": ("a.png", huge, "too many pixels"),
    "gif": ("a.gif", lambda p: frames(p), "neither png, jpeg, webp nor bmp"),
    "tiff": ("a.tiff", FLAT.save, "neither png, jpeg, webp nor bmp"),
    "12 bits in 16, colour": ("a.png", deep_png(2, (4095, 900, 60)), "nearly black.*below 4,096"),
    "12 bits in 16, alpha": ("a.png", deep_png(6, (4095, 9, 60, 65535)), "nearly black"),
    "10 bits in 16, grey, alpha": ("a.png", deep_png(4, (1023, 65535)), "nearly black"),
    "8 bits in 16, colour": ("a.png", deep_png(2, (200, 30, 20)), "nearly black.*below 256"),
    "8 bits in 16, alpha": ("a.png", deep_png(6, (0, 0, 20, 65535)), "nearly black.*below 256"),
    "8 bits in 16, grey, alpha": ("a.png", deep_png(4, (200, 65535)), "nearly black.*below 256"),
    "12 bits in 16": ("a.png", sixteen_bits(0, 4095), "nearly black.*4,095 of 65,535"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(case: str, tmp_path: Path):
    name, save, words = REFUSED[case]
    save(tmp_path / name)
    with pytest.raises(ValueError, match=words) as refusal:
        COLOUR.read([tmp_path / name])
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_whole_numbers_without_a_range_are_refused():
    image = Image.fromarray(np.full((SIZE, SIZE), 200, np.int32))
    with pytest.raises(ValueError, match=r"X\[0\] would be nearly black"):
        GREY.read([image])
