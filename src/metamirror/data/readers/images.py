"""Images from bytes that nobody has looked at yet."""

import contextlib
import io
import struct
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError, WebPImagePlugin

MAX_PIXELS = 50_000_000
"""The most pixels of one image: more than a camera's, and 150 MB once decoded."""

DARKEST = 4096
"""The least that the brightest of 16 bits may be: scanners that store 12 bits stay below."""

# PIL knows forty formats; no more of its parsers than these ever see the bytes.
_FORMATS = ("PNG", "JPEG", WebPImagePlugin.WebPImageFile.format, "BMP")

_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")

# Python's warning filters belong to the process: two threads must not set them aside at once.
_quiet = threading.Lock()


class BadImage(ValueError):  # noqa: N818
    """Bytes that are no image, or an image that is not safe to decode."""


class _TooDark(Exception):  # noqa: N818
    """16 bits of which an image uses the lowest alone; it says the largest value."""


def decode(
    data: bytes, name: str, size: int | None = None, channels: int | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image as an array (height, width, channels) of bytes.

    Transparent parts become white, or black where all the rest is white; 16 bits become 8, and a
    camera's orientation is applied; of an animation the first frame counts. To `size` the shorter
    side is brought, and the middle is cut out; an image that has it is left alone. `channels` is 1
    for luminance, 3 for colour; None keeps grey grey and colour colour, by the image's mode or the
    colours of its palette. A `BadImage` calls it `name`.

    >>> paper = io.BytesIO()
    >>> Image.new("1", (105, 105), 1).save(paper, "png")
    >>> decode(paper.getvalue(), "0709_01.png", size=28).shape
    (28, 28, 1)
    """
    with _named(name):
        # What a header claims is checked before memory is taken.
        _check_pixels(*_webp_size(data))
        with _quiet, warnings.catch_warnings(action="ignore"):
            image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_pixels(*image.size)
        pixels = _pixels(image, channels == 1 or (channels is None and _is_grey(image, data)), size)
        if image.format == "PNG" and data[24] == 16 and image.mode in ("RGB", "RGBA", "LA"):
            _check_high_bytes(image, data)
        return pixels


def pixels_of(image: Image.Image, name: str, channels: int) -> npt.NDArray[np.uint8]:
    """Return the pixels of an open image, as `decode` would.

    >>> pixels_of(Image.new("RGBA", (40, 30)), "mine", 1).shape
    (30, 40, 1)
    """
    with _named(name):
        _check_pixels(*image.size)
        return _pixels(image, channels == 1, None)


def fit(
    pixels: npt.NDArray[np.uint8], size: int, channels: int, crop: float = 1
) -> npt.NDArray[np.uint8]:
    """Return an array (height, width, channels) in another size or with other channels.

    `crop` is the share of the middle square that is taken.

    >>> fit(np.zeros((84, 84, 3), np.uint8), 32, 1).shape
    (32, 32, 1)
    """
    if pixels.shape == (size, size, channels) and crop == 1:
        return pixels
    grey = pixels.shape[-1] == 1
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if grey else pixels))
    return _pixels(image, channels == 1, size, crop)


def _pixels(
    image: Image.Image, grey: bool, size: int | None, crop: float = 1
) -> npt.NDArray[np.uint8]:
    image.load()
    if "exif" in image.info:
        image = image.copy()  # it may be the user's own
        # A camera's notes may be broken and the image sound.
        with _quiet, warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
            ImageOps.exif_transpose(image, in_place=True)
    image = _flat(image, "L" if grey else "RGB")
    if size is not None and (image.size != (size, size) or crop < 1):
        # The middle square, by Lanczos, as MAML's scripts prepared miniImageNet. PIL widens the
        # filter when it shrinks an image, so that thin strokes fade and do not break.
        short = min(image.size)
        left, top = ((side - short) // 2 for side in image.size)
        rim = short * (1 - crop) / 2
        box = (left + rim, top + rim, left + short - rim, top + short - rim)
        image = image.resize((size, size), Image.Resampling.LANCZOS, box)
    pixels = np.array(image, dtype=np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"{width:,} x {height:,} pixels")


def _check_high_bytes(image: Image.Image, data: bytes) -> None:
    """Refuse 16 bits with colour or alpha that use the lowest alone: PIL keeps the high bytes."""
    colours = image.convert("RGB") if image.mode == "RGB" else image.convert("RGBA").convert("RGB")
    brightest = int(np.asarray(colours).max())
    if brightest < DARKEST // 256 and (brightest or _has_low_bytes(data)):
        raise _TooDark(f"below {256 * (brightest + 1):,}")


def _has_low_bytes(data: bytes) -> bool:
    """Return whether a png of 16 bits with colour or alpha has a low byte other than zero."""
    # Grey with alpha takes as many bytes as eight bits in colour: grey's two come first.
    raw = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "LA;16B": "RGBA"}
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        grey = image.tile[0].args == "LA;16B"
        image.tile = [tile._replace(args=raw[str(tile.args)]) for tile in image.tile]
        return bool(np.asarray(image)[..., : 2 if grey else 3].any())


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return what a webp claims: its reader takes the memory as soon as it sees the header."""
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


def _is_grey(image: Image.Image, data: bytes) -> bool:
    if image.mode == "P":
        colours = np.array(image.getpalette("RGB")).reshape(-1, 3)
        used = colours[np.unique(np.asarray(image))]
        return bool((used == used[:, :1]).all())
    # PIL opens grey with alpha and 16 bits as RGBA; bit 2 of a png's colour type says colour.
    grey_png = image.format == "PNG" and not data[25] & 2
    return image.mode in _GREY or grey_png


def _flat(image: Image.Image, mode: str) -> Image.Image:
    """Return the image as `L` or `RGB`, on white paper, or on black if it is all white."""
    if image.mode.startswith("I"):
        # PIL would clip 16 bits at 255, and show anything brighter as white.
        values = np.asarray(image).astype(np.int64).clip(0, 65535)
        if 0 < values.max() < DARKEST:
            raise _TooDark(f"{values.max():,}")
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif "A" in image.mode or "transparency" in image.info:
        ink = image.convert("RGBA")
        image = _on_paper(ink, "white")
        # White ink shows on black paper alone.
        if _is_blank(image) and not _is_blank(ink.getchannel("A")):
            image = _on_paper(ink, "black")
    if image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image.convert(mode)


def _on_paper(ink: Image.Image, colour: str) -> Image.Image:
    return Image.alpha_composite(Image.new("RGBA", ink.size, colour), ink)


def _is_blank(image: Image.Image) -> bool:
    ends = np.array(image.getextrema()).reshape(-1, 2)
    return bool((ends[:, 0] == ends[:, 1]).all())


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the image in whatever PIL's parsers raise, from SyntaxError to struct.error."""
    try:
        yield
    except Image.DecompressionBombError as error:
        raise BadImage(
            f"{name} claims too many pixels ({error}), so it is not decoded; the most is "
            f"{MAX_PIXELS:,}. Make it smaller or remove it"
        ) from error
    except _TooDark as error:
        raise BadImage(
            f"{name} would be nearly black: its largest value is {error} of 65,535; stretch its "
            f"values to 16 bits, or convert it to 8"
        ) from None
    except UnidentifiedImageError as error:
        raise BadImage(
            f"{name} is empty, damaged, or neither png, jpeg, webp nor bmp; download or copy it "
            f"again, or convert it"
        ) from error
    except Exception as error:
        raise BadImage(
            f"{name} is damaged: {str(error) or type(error).__name__}; download or copy it again"
        ) from error
