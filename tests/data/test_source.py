"""One view of folders and archives, and what is refused in them."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metamirror.data.readers import archives
from metamirror.data.readers.archives import DamagedArchive, RefusedFile
from metamirror.data.readers.source import open_source
from tests.data.sources import tar_entry as entry
from tests.data.sources import write, write_tar

FILES = {"images/b.jpg": b"bee" * 500, "images/a.jpg": b"ay", "train.csv": b"filename,label\n"}
NOISE = {"__MACOSX/images/._a.jpg": b"x", ".DS_Store": b"x", "images/.hidden/c.jpg": b"x"}
TARS = [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"]
ARCHIVES = [".zip", *TARS]


@pytest.mark.parametrize("suffix", ["", *ARCHIVES])
def test_folders_and_archives_look_the_same(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"data{suffix}", FILES | NOISE)
    with open_source(path) as source:
        assert source.names == sorted(FILES)
        assert {name: source.read(name) for name in source.names} == FILES
        assert dict(source.read_many(FILES)) == FILES


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_archives_directly_in_a_folder_are_looked_into(tmp_path: Path, suffix: str):
    write(tmp_path / f"one{suffix}", {"x/a.png": b"1"})
    write(tmp_path / f"two{suffix}", {"x/a.png": b"2"})
    write(tmp_path / "deeper", {f"three{suffix}": b"not looked into"})
    (tmp_path / "labels.csv").write_bytes(b"3")
    with open_source(tmp_path) as source:
        expected = {
            f"deeper/three{suffix}": b"not looked into",
            "labels.csv": b"3",
            f"one{suffix}/x/a.png": b"1",
            f"two{suffix}/x/a.png": b"2",
        }
        assert source.names == sorted(expected)
        assert dict(source.read_many(expected)) == expected
        assert sorted(path.relative_to(tmp_path).as_posix() for path in source.files) == [
            f"deeper/three{suffix}",
            "labels.csv",
            f"one{suffix}",
            f"two{suffix}",
        ]


def test_a_single_file_is_a_source_of_one(tmp_path: Path):
    path = tmp_path / "train.pkl"
    path.write_bytes(b"abc")
    with open_source(path) as source:
        assert (source.names, source.files, source.read("train.pkl")) == (
            ["train.pkl"],
            [path],
            b"abc",
        )


def test_names_that_begin_with_a_dot_and_a_slash_are_the_same_names(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", [entry("./x/a.png", b"1"), entry("./b.png", b"2")])
    with open_source(path) as source:
        assert source.names == ["b.png", "x/a.png"]


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_many_are_read_in_the_order_of_the_archive(tmp_path: Path, suffix: str):
    files = {f"{(7 * i) % 20:02}.png": bytes([i]) * 700 for i in range(20)}
    with open_source(write(tmp_path / f"a{suffix}", files)) as source:
        assert list(source.read_many(sorted(files))) == list(files.items())


def test_a_compressed_tar_is_read_from_front_to_back(tmp_path: Path, monkeypatch):
    files = {f"{i:03}.png": os.urandom(3000) for i in range(100)}
    path = write(tmp_path / "a.tgz", files)
    opened, places = [], []
    open_tar, extract = tarfile.open, tarfile.TarFile.extractfile
    monkeypatch.setattr(tarfile, "open", lambda *a, **o: opened.append(a) or open_tar(*a, **o))
    monkeypatch.setattr(
        tarfile.TarFile,
        "extractfile",
        lambda self, info: places.append(info.offset_data) or extract(self, info),
    )
    with open_source(path) as source:
        assert not opened, "nothing is opened before it is asked for"
        assert source.names
        assert dict(source.read_many(reversed(files))) == files
    assert len(opened) == 1
    assert places == sorted(places)


def test_reading_between_many_disturbs_nothing(tmp_path: Path):
    files = {f"{i}.png": bytes([i]) * 2000 for i in range(8)}
    with open_source(write(tmp_path / "a.tgz", files)) as source:
        for name, data in source.read_many(files):
            assert source.read("0.png") == files["0.png"]
            assert data == files[name]


CLIMBING = ["../evil", "a/../../evil", "/etc/evil", "C:/evil", "c:evil", "..\\evil", "a\\b", ".."]


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
def test_an_entry_that_climbs_out_is_refused(tmp_path: Path, name: str, suffix: str):
    path = write(tmp_path / f"a{suffix}", {"good.png": b"1", name: b"2"})
    with open_source(path) as source, pytest.raises(ValueError, match="outside") as caught:
        _ = source.names
    assert repr(name) in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes):
    link = entry("passwords", type=kind, linkname="/etc/passwd")
    path = write_tar(tmp_path / "a.tar", [entry("good.png", b"1"), link])
    with open_source(path) as source, pytest.raises(ValueError, match=r"passwords.*link"):
        _ = source.names


def test_sparse_files_are_refused(tmp_path: Path):
    """Their maps of holes could be of any length."""
    old = entry("holes.png", type=tarfile.GNUTYPE_SPARSE)
    new, _ = entry("holes.png", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
    for i, sparse in enumerate((old, (new, b""))):
        path = write_tar(tmp_path / f"{i}.tar", [entry("good.png", b"1"), sparse])
        with open_source(path) as source, pytest.raises(RefusedFile, match="sparse"):
            _ = source.names


def test_a_symbolic_link_in_a_zip_is_refused(tmp_path: Path):
    link = zipfile.ZipInfo("passwords")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    with open_source(tmp_path / "a.zip") as source, pytest.raises(ValueError, match="link"):
        _ = source.names


def test_an_encrypted_zip_is_refused_with_the_way_out(tmp_path: Path):
    path = write(tmp_path / "a.zip", {"a.png": b"1"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(ValueError, match=r"encrypted.*password"):
        _ = source.names


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unbounded_methods_of_compression_are_refused(tmp_path: Path, method: int):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as file:
        file.writestr("a.png", b"1")
    with open_source(tmp_path / "a.zip") as source, pytest.raises(ValueError, match="folder"):
        _ = source.names


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize("twin", ["a.png", "./a.png", ".//a.png"])
def test_a_name_that_stands_twice_is_refused(tmp_path: Path, suffix: str, twin: str):
    path = tmp_path / f"a{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if suffix == ".zip":
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("a.png", b"1")
                file.writestr(twin, b"2")
        else:
            write_tar(path, [entry("a.png", b"1"), entry(twin, b"2")])
    with open_source(path) as source, pytest.raises(ValueError, match="twice"):
        _ = source.names


@pytest.mark.parametrize("suffix", ["", *ARCHIVES])
def test_the_limit_counts_the_bytes_that_arrive(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"data{suffix}", {"a.png": bytes(1000)})
    with open_source(path) as source:
        assert len(source.read("a.png", limit=1000)) == 1000
        with pytest.raises(ValueError, match=r"a\.png.*more than 999 bytes"):
            source.read("a.png", limit=999)


def test_a_zip_that_lies_about_its_sizes_is_not_believed(tmp_path: Path):
    path = write(tmp_path / "a.zip", {"a.png": bytes(10**6)})
    data = bytearray(path.read_bytes())
    for start, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(start) + at
        data[place : place + 4] = (10).to_bytes(4, "little")
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(DamagedArchive, match=r"a\.png"):
        source.read("a.png")


def test_a_zip_bomb_stops_at_the_limit(tmp_path: Path):
    path = write(tmp_path / "a.zip", {"a.png": bytes(2 * archives.LIMIT)})
    assert path.stat().st_size < archives.LIMIT // 500
    with open_source(path) as source, pytest.raises(ValueError, match="more than"):
        source.read("a.png")


@pytest.mark.parametrize("suffix", [".zip", ".tbz2"])
def test_what_is_held_in_memory_may_not_grow_out_of_nothing(tmp_path: Path, monkeypatch, suffix):
    """A pickle may have gigabytes, but not if it has kilobytes in its archive."""
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 2**20)
    monkeypatch.setattr(archives, "_RATIO", 10**6)
    path = write(tmp_path / f"a{suffix}", {"train.pkl": bytes(4 * 2**20)})
    with open_source(path) as source, pytest.raises(RefusedFile, match="more than"):
        source.read("train.pkl", limit=archives.LARGE)


def test_a_tar_that_grows_a_thousandfold_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 2**20)
    write(tmp_path / "a.tar.bz2", {"a.png": bytes(16 * 2**20)})
    with open_source(tmp_path / "a.tar.bz2") as source, pytest.raises(RefusedFile, match="unpacks"):
        _ = source.names


@pytest.mark.parametrize("suffix", ["", ".zip", ".tar"])
def test_too_many_files_are_refused(tmp_path: Path, monkeypatch, suffix: str):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 5)
    monkeypatch.setattr("metamirror.data.readers.source.MAX_ENTRIES", 5)
    few = write(tmp_path / f"few{suffix}", {f"{i}.png": b"" for i in range(5)})
    many = write(tmp_path / f"many{suffix}", {f"{i}.png": b"" for i in range(6)})
    with open_source(few) as source:
        assert len(source.names) == 5
    with pytest.raises(ValueError, match="more than 5 files"), open_source(many) as source:
        _ = source.names


def test_a_tar_whose_header_leads_backwards_ends(tmp_path: Path):
    """A negative size sends tarfile back to the header it has just read, for ever."""
    circle, _ = entry(".hidden", pax_headers={"size": "-1536"})
    path = write_tar(tmp_path / "a.tar", [entry("a.png", b"1"), (circle, b"")])
    with open_source(path) as source, pytest.raises(DamagedArchive, match="leads back"):
        _ = source.names


def test_a_long_name_of_gigabytes_is_not_read(tmp_path: Path):
    header = entry("././@LongLink", type=tarfile.GNUTYPE_LONGNAME)[0]
    header.size = 2**30
    with gzip.open(tmp_path / "a.tgz", "wb", 1) as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT) + bytes(2**20))
    with open_source(tmp_path / "a.tgz") as source, pytest.raises(RefusedFile) as caught:
        _ = source.names
    assert "a header of 1,073,741,824 bytes" in str(caught.value)


def test_a_bomb_behind_the_last_entry_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 2**20)
    write(tmp_path / "a.tar", {"a.png": b"1"})
    content = (tmp_path / "a.tar").read_bytes() + bytes(16 * 2**20)
    (tmp_path / "a.tbz2").write_bytes(bz2.compress(content))
    with open_source(tmp_path / "a.tbz2") as source, pytest.raises(RefusedFile, match="unpacks"):
        _ = source.names


def test_a_tar_that_shrinks_after_its_names_were_read_is_damaged(tmp_path: Path):
    path = write(tmp_path / "a.tar", {"a.png": bytes(5000)})
    with open_source(path) as source:
        assert source.names
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(DamagedArchive, match=r"a\.png"):
            source.read("a.png")


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.3, 0.6, 0.97])
def test_an_archive_that_was_cut_short_is_damaged(tmp_path: Path, suffix: str, keep: float):
    files = {f"{i}.png": os.urandom(1500) for i in range(9)}
    path = write(tmp_path / f"a{suffix}", files)
    whole = path.read_bytes().rstrip(b"\0") if suffix == ".tar" else path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with open_source(path) as source, pytest.raises(DamagedArchive, match=r"damaged.*again"):
        dict(source.read_many(source.names))


def test_a_tar_that_was_cut_between_two_entries_is_damaged(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", [entry(f"{i}.png", b"1") for i in range(4)])
    path.write_bytes(path.read_bytes()[: 2 * 1024])
    with open_source(path) as source, pytest.raises(DamagedArchive):
        _ = source.names


def test_a_broken_header_does_not_hide_the_entries_behind_it(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", [entry(f"{i}.png", b"1") for i in range(4)])
    data = bytearray(path.read_bytes())
    data[2 * 1024 + 3] ^= 1
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(DamagedArchive):
        _ = source.names


@pytest.mark.parametrize("suffix", [".zip", ".tgz", ".tar.bz2", ".tar.xz"])
def test_a_flipped_bit_in_the_data_is_noticed(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"a{suffix}", {"a.png": os.urandom(5000)})
    data = bytearray(path.read_bytes())
    data[2500] ^= 8
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(DamagedArchive):
        dict(source.read_many(source.names))


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_web_page_is_no_archive(tmp_path: Path, suffix: str):
    (tmp_path / f"a{suffix}").write_text("<html>please sign in</html>" * 50)
    with open_source(tmp_path / f"a{suffix}") as source, pytest.raises(DamagedArchive):
        _ = source.names


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_without_files_is_refused(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"a{suffix}", NOISE)
    with open_source(path) as source, pytest.raises(ValueError, match="no files"):
        _ = source.names


def test_links_within_a_folder_are_followed(tmp_path: Path):
    write(tmp_path / "data", FILES)
    (tmp_path / "data/copy.jpg").symlink_to("images/a.jpg")
    (tmp_path / "data/pictures").symlink_to("images", target_is_directory=True)
    (tmp_path / "alias").symlink_to("data", target_is_directory=True)
    with open_source(tmp_path / "alias") as source:
        linked = {"copy.jpg", "pictures/a.jpg", "pictures/b.jpg"}
        assert source.names == sorted({*FILES, *linked})
        assert source.read("pictures/b.jpg") == FILES["images/b.jpg"]


@pytest.mark.parametrize(
    "target", ["../secret/key", "../secret", "nothing", "loop", ".", "images/.."]
)
def test_links_that_lead_out_nowhere_or_in_circles_are_refused(tmp_path: Path, target: str):
    write(tmp_path / "data", FILES)
    write(tmp_path / "secret", {"key": b"secret"})
    (tmp_path / "data/loop").symlink_to(target)
    with pytest.raises(ValueError, match=r"loop.*leads"):
        open_source(tmp_path / "data")


def test_two_links_that_make_a_circle_together_are_refused(tmp_path: Path):
    write(tmp_path / "data", {"a/x.png": b"1", "b/y.png": b"2"})
    (tmp_path / "data/a/next").symlink_to("../b")
    (tmp_path / "data/b/next").symlink_to("../a")
    with pytest.raises(ValueError, match="circle"):
        open_source(tmp_path / "data")


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "a.png")
    for path in (tmp_path, tmp_path / "a.png"):
        with pytest.raises(ValueError, match="neither"):
            open_source(path)


def test_an_absent_path_and_an_empty_folder_are_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"there is no .*absent"):
        open_source(tmp_path / "absent")
    (tmp_path / ".hidden").touch()
    with pytest.raises(ValueError, match="empty"):
        open_source(tmp_path)


def test_an_unknown_name_is_told_what_there_is(tmp_path: Path):
    source = open_source(write(tmp_path / "data", FILES))
    with pytest.raises(ValueError, match=r"no 'b\.jpg'.*3 files.*images/a\.jpg"):
        dict(source.read_many(["train.csv", "b.jpg"]))


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path):
    path = write_tar(tmp_path / "a.tar", [entry("good.png", b"1")])
    data = path.read_bytes().replace(b"good.png", b"go\xffd.png")
    broken = bytearray(data)
    broken[148:156] = b"%06o\0 " % (256 + sum(broken[:148]) + sum(broken[156:512]))
    path.write_bytes(broken)
    with open_source(path) as source, pytest.raises(ValueError, match="UTF-8"):
        _ = source.names


def valid_archive(suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("a.png", b"1" * 90)
            file.writestr("b/c.png", b"2" * 90)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in (entry("a.png", b"1" * 90), entry("é" * 90 + "/c.png", b"2" * 90)):
            tar.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()[: 10 * 512]
    pack = {".tgz": gzip.compress, ".tbz2": bz2.compress, ".txz": lzma.compress}
    return pack.get(suffix, bytes)(data)


VALID = {suffix: valid_archive(suffix) for suffix in (".zip", ".tar", ".tgz", ".tbz2", ".txz")}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_bytes_give_files_or_a_named_error(tmp_path: Path, data: st.DataObject):
    suffix = data.draw(st.sampled_from(sorted(VALID)))
    content = bytearray(VALID[suffix])
    places = st.integers(0, len(content) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[place] = value
    if suffix == ".tar":  # otherwise its checksums catch everything before it is read
        for place in range(0, len(content) - 511, 512):
            if content[place + 257 : place + 262] == b"ustar":
                block = content[place : place + 512]
                total = 256 + sum(block[:148]) + sum(block[156:])
                content[place + 148 : place + 156] = b"%06o\0 " % total
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with open_source(path) as source, contextlib.suppress(ValueError):
        for _, entry_data in source.read_many(source.names):
            assert len(entry_data) <= archives.LIMIT
