"""numpy's archives of arrays, measured before they are believed.

`numpy.load` takes memory for whatever shape a header claims, and unpacks a few bytes to as many as
they grow to.
"""

import io
import math
import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from metamirror.data.readers.archives import LARGE, bounded, check_readable, damage


def read_npz(content: bytes, key: str, name: str) -> NDArray[Any]:
    """Return the array `key` of an npz called `name`, as a read-only view of its bytes.

    Raises:
        ValueError: it is damaged, encrypted, grows beyond measure, or holds no such array.
    """
    with damage(name), zipfile.ZipFile(io.BytesIO(content)) as archive:
        if f"{key}.npy" not in archive.namelist():
            raise ValueError(f"it holds no array called {key}")
        info = archive.getinfo(f"{key}.npy")
        check_readable(info, name)
        with archive.open(info) as entry:
            return _array(bounded(entry, LARGE, name, packed=info.compress_size))


def _array(data: bytes) -> NDArray[Any]:
    stream = io.BytesIO(data)
    try:
        old = npy.read_magic(stream) == (1, 0)
        read = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
        shape, columns_first, dtype = read(stream)
    except Exception as error:  # Python itself reads the header, as it would a program's line
        raise ValueError(f"its header is none of numpy's: {error}") from error
    start = stream.tell()
    if dtype.hasobject or len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - start:,} bytes for an array of {shape} {dtype}")
    found = np.frombuffer(data, dtype, offset=start)
    return found.reshape(shape, order="F" if columns_first else "C")
