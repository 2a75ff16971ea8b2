"""The functions of `metamirror.core.files`, under the name by which the rooms above know them."""

from metamirror.core.files import (
    digest_of,
    expanded,
    read_json,
    remove_leftovers,
    sync_folder,
    to_json,
    write_atomically,
    write_json,
)

__all__ = [
    "digest_of",
    "expanded",
    "read_json",
    "remove_leftovers",
    "sync_folder",
    "to_json",
    "write_atomically",
    "write_json",
]
