"""Pictures from bytes that nobody has looked at yet."""

from __future__ import annotations

import io
import struct
import threading
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError, WebPImagePlugin

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""How the names of pictures end, in lower case."""

MAX_PIXELS = 50_000_000
"""The most pixels of one picture: more than a camera's, and 150 MB once decoded."""

# PIL knows forty formats; no more of its parsers than these ever see the bytes.
_FORMATS = ("PNG", "JPEG", WebPImagePlugin.WebPImageFile.format, "BMP")

_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Python's warning filters belong to the process: two threads must not set them aside at once.
_quiet = threading.Lock()


class BadPicture(ValueError):  # noqa: N818
    """Bytes that are no picture, or a picture that is not safe to decode."""


def decode(
    data: bytes, name: str, size: int | None = None, channels: int | None = None
) -> npt.NDArray[np.uint8]:
    """A picture as an array (height, width, channels) of bytes.

    Transparent parts lie on white paper, 16 bits become 8, and a camera's orientation is applied.

    >>> paper = io.BytesIO()
    >>> Image.new("1", (105, 105), 1).save(paper, "png")
    >>> decode(paper.getvalue(), "0709_01.png", size=28).shape
    (28, 28, 1)

    Args:
        data: a png, jpeg, webp or bmp file.
        name: what to call it in an error.
        size: height and width. The shorter side is brought to it and the middle is cut out; a
            picture that has it is left alone. None keeps height and width.
        channels: 1 for luminance, 3 for colour; None keeps grey grey and colour colour.

    Raises:
        BadPicture: the bytes are damaged, of another format, or claim too many pixels.
    """
    if size is not None and size < 1:
        raise ValueError(f"size is {size}; it must be at least 1")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels is {channels}; it must be 1, 3 or None")
    try:
        picture = _open(data)
        grey = channels == 1 or (channels is None and _is_grey(picture, data))
        return _pixels(picture, grey, size)
    except Exception as error:
        raise _bad(name, error) from error


def pixels_of(
    picture: Image.Image, name: str, size: int | None, channels: int
) -> npt.NDArray[np.uint8]:
    """A picture that is open already, as `decode` would give it.

    >>> pixels_of(Image.new("RGBA", (40, 30)), "mine", 28, 1).shape
    (28, 28, 1)
    """
    try:
        return _pixels(_upright(picture), channels == 1, size)
    except Exception as error:
        raise _bad(name, error) from error


def is_grey(data: bytes, name: str) -> bool:
    """Whether a picture has no colours, by its mode or the colours its palette gives it.

    Raises:
        BadPicture: as in `decode`.
    """
    try:
        return _is_grey(_open(data), data)
    except Exception as error:
        raise _bad(name, error) from error


def fit(
    pixels: npt.NDArray[np.uint8], size: int, channels: int | None = None
) -> npt.NDArray[np.uint8]:
    """An array (height, width, channels) in another size or with other channels; see `decode`.

    >>> fit(np.zeros((84, 84, 3), np.uint8), 32, 1).shape
    (32, 32, 1)
    """
    grey = pixels.shape[-1] == 1
    mode = "L" if (grey if channels is None else channels == 1) else "RGB"
    if pixels.shape[:2] == (size, size) and grey == (mode == "L"):
        return pixels
    picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if grey else pixels))
    picture = picture.convert(mode)
    if picture.size != (size, size):
        picture = _square(picture, size)
    found = np.array(picture, dtype=np.uint8)
    return found.reshape(size, size, -1)


def _open(data: bytes) -> Image.Image:
    """The picture, upright. What its header claims is judged before memory is taken for it."""
    _check_pixels(_webp_size(data))
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        picture: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
    return _upright(picture)


def _upright(picture: Image.Image) -> Image.Image:
    _check_pixels(picture.size)
    picture.load()
    turn = _turn(picture)
    return picture if turn is None else picture.transpose(turn)


def _pixels(picture: Image.Image, grey: bool, size: int | None) -> npt.NDArray[np.uint8]:
    picture = _flat(picture, "L" if grey else "RGB")
    if size is not None and picture.size != (size, size):
        picture = _square(picture, size)
    pixels = np.array(picture, dtype=np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise _TooLargeError(f"{size[0]:,} x {size[1]:,} pixels")


def _webp_size(data: bytes) -> tuple[int, int]:
    """What a webp claims: its reader takes the memory as soon as it sees the header."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return (0, 0)
    head = data[12:30].ljust(18, b"\0")
    if head.startswith(b"VP8X"):
        width, height = head[12:15], head[15:18]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if head.startswith(b"VP8L"):
        bits = int.from_bytes(head[9:13], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", head[14:18])
    return width & 0x3FFF, height & 0x3FFF


def _turn(picture: Image.Image) -> Image.Transpose | None:
    if "exif" not in picture.info:
        return None
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1))
        except Exception:  # a camera's notes may be broken and the picture sound
            return None


def _is_grey(picture: Image.Image, data: bytes) -> bool:
    if picture.mode == "P":
        colours = np.array(picture.getpalette("RGB")).reshape(-1, 3)
        used = colours[np.unique(np.asarray(picture))]
        return bool((used == used[:, :1]).all())
    # PIL opens grey with alpha and 16 bits as RGBA; bit 2 of a png's colour type says colour.
    grey_png = picture.format == "PNG" and not data[25] & 2
    return picture.mode in _GREY or grey_png


def _flat(picture: Image.Image, mode: str) -> Image.Image:
    """The picture as `L` or `RGB`, on white paper."""
    if picture.mode.startswith("I"):
        # PIL would clip 16 bits at 255, and show anything brighter as white.
        values = np.asarray(picture).astype(np.int64).clip(0, 65535)
        picture = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif "A" in picture.mode or "transparency" in picture.info:
        ink = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", ink.size, "white"), ink)
    if picture.mode not in ("1", "L", "RGB"):
        picture = picture.convert("RGB")
    return picture.convert(mode)


def _square(picture: Image.Image, size: int) -> Image.Image:
    """The middle square, scaled by Lanczos, as MAML's scripts prepared miniImageNet.

    PIL widens the filter when it shrinks a picture, so that thin strokes fade and do not break.
    """
    short = min(picture.size)
    left, top = ((side - short) // 2 for side in picture.size)
    box = (left, top, left + short, top + short)
    return picture.resize((size, size), Image.Resampling.LANCZOS, box)


class _TooLargeError(Exception):
    pass


def _bad(name: str, error: Exception) -> BadPicture:
    """PIL lets through whatever its parsers stumble on, from SyntaxError to struct.error."""
    if isinstance(error, _TooLargeError | Image.DecompressionBombError):
        return BadPicture(
            f"{name} claims too many pixels ({error}), so it is not decoded; the most is "
            f"{MAX_PIXELS:,}. Make it smaller or remove it"
        )
    if isinstance(error, UnidentifiedImageError):
        return BadPicture(
            f"{name} is empty, damaged, or neither png, jpeg, webp nor bmp; download or copy it "
            f"again, or convert it"
        )
    return BadPicture(
        f"{name} is damaged: {error or type(error).__name__}; download or copy it again"
    )
