"""Pickles of data are read; any others are refused, and nothing that they ask for is done."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import pickle
import pickletools
import struct
import time
from collections import OrderedDict, defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metamirror.data.readers import safe_pickle
from metamirror.data.readers.safe_pickle import DamagedPickle, UnsafePickle, load

PROTOCOLS = range(6)


def same(a: object, b: object) -> bool:
    """Equal in value and in type, arrays in dtype and shape."""
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_come_back_as_they_were(value: object, protocol: int):
    assert same(load(pickle.dumps(value, protocol), "a.pkl"), value)


ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    np.arange(6, dtype=">f4"),
    np.zeros((0, 3), np.float16),
    np.array(3.5),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["n01532829", "é"]),
    np.array(["n01532829", "é"]).astype(">U9"),
    np.array([b"abc", b"d"]),
    np.float32(2.5),
    np.int64(-7),
    np.bool_(True),
    np.str_("letters"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", ARRAYS, ids=lambda v: f"{v.dtype}{v.shape}")
def test_arrays_come_back_as_they_were(value: np.ndarray, protocol: int):
    assert same(load(pickle.dumps(value, protocol), "a.pkl"), value)
    numpy_1 = pickle.dumps(value, 2).replace(b"numpy._core.", b"numpy.core.")
    assert b"_core" not in numpy_1
    assert same(load(numpy_1, "a.pkl"), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_array_that_stands_twice_is_one_array(protocol: int):
    shared = np.arange(5)
    first, second, inner = load(pickle.dumps([shared, shared, {"x": shared}], protocol), "a.pkl")
    assert first is second is inner["x"]
    assert same(first, shared)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ordered_dicts_keep_their_order(protocol: int):
    value = OrderedDict([("b", 1), ("a", np.int64(2)), (("t", 3), [4])])
    assert same(load(pickle.dumps(value, protocol), "a.pkl"), dict(value))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_pickles_of_few_shot_data_sets_are_read(protocol: int):
    pictures = np.random.default_rng(0).integers(0, 256, (4, 84, 84, 3), dtype=np.uint8)
    mini = {"image_data": pictures, "class_dict": {"n01532829": [0, 1], "n01558993": [2, 3]}}
    assert same(load(pickle.dumps(mini, protocol), "mini.pkl"), mini)
    encoded = [np.frombuffer(os.urandom(n), np.uint8) for n in (50, 60, 70)]
    assert same(load(pickle.dumps(encoded, protocol), "train_images_png.pkl"), encoded)
    objects = np.empty(3, object)
    objects[:] = encoded
    assert same(load(pickle.dumps(objects, protocol), "train_images_png.pkl"), encoded)
    labels = {"label_specific": np.arange(3), "label_specific_str": ["dog", "cat", "owl"]}
    assert same(load(pickle.dumps(labels, protocol), "train_labels.pkl"), labels)


def old_string(data: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(data)) + data


PYTHON_2 = (
    b"\x80\x02}q\x01(" + old_string(b"data") + b"q\x02cnumpy.core.multiarray\n_reconstruct\nq\x03"
    b"cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06"
    b"U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89" + old_string(b"\x00\x7f\x80\xff\n'") + b"tb" + old_string(b"fine_labels") + b"]q\x08("
    b"K\x13K\x1de" + old_string(b"filenames") + b"]q\x09U\x0bbos_\xe9.png\x00\x00a" + b"u."
)


def test_the_pickles_of_python_2_are_read():
    """As `cifar-100-python/train` is written: strings are bytes, and so are an array's."""
    raw = np.array([[0, 127, 128], [255, 10, 39]], np.uint8)
    expected = pickle.loads(PYTHON_2, encoding="bytes")
    assert same(expected[b"data"], raw)
    assert same(load(PYTHON_2, "train"), expected)


def test_the_oldest_protocol_is_read():
    """Python 2 wrote protocol 0 unless told otherwise."""
    data = (
        b"(dp0\nS'a\\x89\\n\\'\\\\b'\np1\nI01\nsS\"it's\"\nL12345678901234567890L\ns"
        b"V\\u00e9\nF0.5\ns."
    )
    assert load(data, "old.pkl") == pickle.loads(data, encoding="bytes")
    assert load(data, "old.pkl")[b"a\x89\n'\\b"] is True


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Plain:
    pass


ATTACKS = {
    "posix.system": Call(os.system, "touch {}"),
    "builtins.eval": Call(eval, "open('{}', 'w')"),
    "builtins.exec": Call(exec, "open('{}', 'w')"),
    "builtins.getattr": Call(getattr, "x", "upper"),
    "io.open": Call(open, "{}", "w"),
    "builtins.bytearray": Call(bytearray, 10**12),
    "numpy.load": Call(np.load, "{}"),
    "collections.defaultdict": defaultdict(list),
    "fractions.Fraction": Fraction(1, 2),
    "copyreg._reconstructor": Call(copyreg._reconstructor, Plain, object, None),
    "torch.": torch.zeros(2),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_pickle_that_calls_is_refused_and_nothing_is_called(tmp_path, name: str, protocol: int):
    mark = tmp_path / "called"
    attack = ATTACKS[name]
    if isinstance(attack, Call):
        arguments = [a.format(mark) if isinstance(a, str) else a for a in attack.arguments]
        attack = Call(attack.function, *arguments)
    with pytest.raises(UnsafePickle) as caught:
        load(pickle.dumps(attack, protocol), "train.pkl")
    message = str(caught.value)
    assert "train.pkl" in message
    assert "save its arrays" in message
    if protocol >= 3:
        assert name in message
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x02cos\nsystem\n)\x81.",
        b"\x80\x04cos\nsystem\n)}\x92.",
        b"\x80\x02\x82\x01.",
        b"P1\n.",
        b"\x80\x02K\x01Q.",
        b"cnumpy\nndarray\n.",
        b"cnumpy\nndarray\n(I9\ntR.",
        b"ccollections\nOrderedDict\n)R}b.",
        b"\x80\x04\x8c\x07_codecsq\x00\x8c\x06encode\x93\x8c\x01ah\x00\x86R.",
        b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R.",
        b"c_codecs\nencode\n(Vx\nS'rot13'\ntR.",
    ],
)
def test_every_way_to_call_or_to_make_an_object_is_closed(program: bytes):
    with pytest.raises(UnsafePickle):
        load(program, "a.pkl")


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"


def dtype(code: str, state: bytes = b"(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb") -> bytes:
    return b"cnumpy\ndtype\n(S'%b'\nI0\nI1\ntR" % code.encode() + state


def hostile(shape: bytes, kind: bytes, raw: bytes, columns_first: bytes = b"I00\n") -> bytes:
    return ARRAY + b"(I1\n(" + shape + b"t" + kind + columns_first + raw + b"tb."


DAMAGED = {
    "a terabyte": hostile(b"L1000000000000L\n", dtype("u1"), b"S'abc'\n"),
    "a negative side": hostile(b"I-1\nI-3\n", dtype("u1"), b"S'abc'\n"),
    "an overflow": hostile(b"L4294967296L\n" * 2, dtype("u1"), b"S''\n"),
    "a float as side": hostile(b"F3.0\n", dtype("u1"), b"S'abc'\n"),
    "a bool as side": hostile(b"I01\n", dtype("u1"), b"S'a'\n"),
    "too few bytes": hostile(b"I2\n", dtype("u4"), b"S'abc'\n"),
    "too many bytes": hostile(b"I2\n", dtype("u1"), b"S'abc'\n"),
    "forty dimensions": hostile(b"I1\n" * 40, dtype("u1"), b"S'a'\n"),
    "items of no size": hostile(b"L1000000000000L\n", dtype("S0"), b"S''\n"),
    "an unknown size": hostile(b"I1\n", dtype("f3"), b"S'abc'\n"),
    "a size beyond numbers": hostile(b"I1\n", dtype("U999999999"), b"S'abc'\n"),
    "impossible letters": hostile(b"I1\n", dtype("U1"), b"S'\\xff\\xff\\xff\\xff'\n"),
    "no bytes but a number": hostile(b"I1\n", dtype("u1"), b"I7\n"),
    "no dtype": hostile(b"I1\n", b"N", b"S'a'\n"),
    "half a dtype": hostile(b"I1\n", dtype("u1", b""), b"S'a'\n"),
    "a dtype's state cut short": hostile(b"I1\n", dtype("u1", b"(I3\nS'|'\ntb"), b"S'a'\n"),
    "another byte order": hostile(
        b"I1\n", dtype("u1", b"(I3\nS'!'\nNNNI-1\nI-1\nI0\ntb"), b"S'a'\n"
    ),
    "another size": hostile(b"I1\n", dtype("u1", b"(I3\nS'|'\nNNNI8\nI-1\nI0\ntb"), b"S'a'\n"),
    "a state of nothing": ARRAY + b"Nb.",
    "a state too short": ARRAY + b"(I1\ntb.",
    "nothing": b"",
    "no end": b"\x80\x04]",
    "an empty stack": b".",
    "two values": b"NN.",
    "a mark": b"(N.",
    "no mark": b"t.",
    "a pop from nothing": b"0.",
    "a tuple of nothing": b"\x85.",
    "append to a number": b"I1\nNa.",
    "an odd dict": b"(I1\nd.",
    "an unhashable key": b"]}" + b"]Ns.",
    "an unknown memo": b"h\x07.",
    "a protocol to come": b"\x80\x63N.",
    "bytes that are not there": b"\x8e" + struct.pack("<Q", 2**62) + b".",
    "a bytearray that is not there": b"\x96" + struct.pack("<Q", 2**40) + b".",
    "a length that leads back to its own instruction": b"T" + struct.pack("<i", -5) + b".",
    "a negative length": b"\x8b" + struct.pack("<i", -1) + b".",
    "text that is no text": b"\x8c\x01\xff.",
    "a web page": b"<!DOCTYPE html><html>",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_contradictions_are_named_and_take_no_memory(name: str):
    with pytest.raises((DamagedPickle, UnsafePickle), match=r"^train\.pkl"):
        load(DAMAGED[name], "train.pkl")


def test_the_hostile_array_is_otherwise_a_good_one():
    good = hostile(b"I3\n", dtype("u1"), b"S'abc'\n")
    assert same(load(good, "a.pkl"), np.array([97, 98, 99], np.uint8))
    assert same(pickle.loads(good, encoding="latin1"), np.array([97, 98, 99], np.uint8))


@pytest.mark.parametrize(
    "value",
    [
        np.array([[None, 1]]),
        np.zeros(2, [("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, "V5"),
    ],
)
def test_arrays_of_anything_but_numbers_and_strings_are_refused(value: np.ndarray):
    for protocol in PROTOCOLS:
        with pytest.raises(UnsafePickle):
            load(pickle.dumps(value, protocol), "a.pkl")


def test_an_array_of_objects_opens_no_back_door():
    objects = np.empty(1, object)
    objects[0] = Call(os.system, "true")
    with pytest.raises(UnsafePickle, match="system"):
        load(pickle.dumps(objects), "a.pkl")


def test_a_memo_of_any_size_takes_no_memory():
    """The reader in C would take 64 GB for this place in its memo."""
    assert load(b"Nr\xfe\xff\xff\xff0j\xfe\xff\xff\xff.", "a.pkl") is None


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02N" + b"\x85" * 100_000 + b".",
        b"\x80\x02}N" + b"\x85" * 500_000 + b"Ns.",
        b"\x80\x02}N\x85" + b"\x85" * 500_000 + b"\x85Ns.",
    ],
    ids=["lists", "tuples", "a key", "another key"],
)
def test_deep_nesting_is_refused(program: bytes):
    with pytest.raises(UnsafePickle, match=r"nested|key"):
        load(program, "a.pkl")


def test_what_is_copied_often_is_refused():
    word = b"X" + struct.pack("<I", 10**6) + b"x" * 10**6 + b"q\x00"
    again = b"c_codecs\nencode\nq\x01(lp2\n" + b"h\x01h\x00S'latin1'\n\x86Ra" * 50
    with pytest.raises(UnsafePickle, match="grow"):
        load(b"\x80\x02(" + word + again + b"t.", "a.pkl")


def test_arrays_of_the_same_bytes_are_views_of_them():
    word = b"T" + struct.pack("<i", 10**6) + b"x" * 10**6 + b"q\x00"
    one = hostile(b"I1000000\n", dtype("u1"), b"h\x00")[:-1]
    raw, *arrays = load(b"(" + word + one * 50 + b"t.", "a.pkl")
    assert len(arrays) == 50
    assert all(np.shares_memory(array, np.frombuffer(raw, np.uint8)) for array in arrays)


def test_too_many_containers_or_memories_are_refused(monkeypatch):
    monkeypatch.setattr(safe_pickle, "_MOST", 1000)
    for code in (b"]", b"}", b"(", b"]\x94\x94", b"N\x85"):
        with pytest.raises(UnsafePickle, match="more than 1,000"):
            load(b"\x80\x04" + code * 1100 + b".", "a.pkl")


def test_a_billion_laughs_are_refused():
    """Each list holds the one before twice: small, but endless if anyone spelled it out."""
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"0(h%bh%blq%b" % (bytes([place]), bytes([place]), bytes([place + 1]))
        for place in range(40)
    )
    last = pickle.loads(laughs + b".")
    assert last[0] is last[1]
    endings = {
        "the value": b".",
        "an array's shape": b"0" + hostile(b"h\x28", dtype("u1"), b"S'a'\n"),
        "an array's bytes": b"0" + hostile(b"I1\n", dtype("u1"), b"h\x28"),
        "an array's dtype": b"0" + hostile(b"I1\n", b"h\x28", b"S'a'\n"),
        "a dtype's state": b"0" + dtype("u1", b"(I3\nS'|'\nNNNh\x28I-1\nI0\ntb") + b".",
        "a byte order": b"0" + dtype("u1", b"(I3\nh\x28NNNI-1\nI-1\nI0\ntb") + b".",
        "a key": b"0}h\x28\x85Ns.",
    }
    for ending in endings.values():
        start = time.perf_counter()
        with pytest.raises((UnsafePickle, DamagedPickle)):
            load(laughs + ending, "a.pkl")
        assert time.perf_counter() - start < 1


def test_a_list_that_holds_itself_is_refused():
    with pytest.raises(UnsafePickle):
        load(b"]q\x00h\x00a.", "a.pkl")


VALID = [
    *(
        pickle.dumps(value, protocol)
        for protocol in PROTOCOLS
        for value in (
            {"image_data": ARRAYS[0], "class_dict": {"n01": [0, 1], "n02": [2]}},
            OrderedDict(a=ARRAYS[2], b=np.float32(2), c=(b"x", None, 1.5, True, 2**70)),
            [ARRAYS[8], ARRAYS[3], np.array([ARRAYS[0], None], object)],
        )
    ),
    PYTHON_2,
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_give_plain_data_or_a_named_error(data: st.DataObject):
    content = bytearray(data.draw(st.sampled_from(VALID)))
    codes = st.sampled_from([code.code.encode("latin-1")[0] for code in pickletools.opcodes])
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content) - 1))
        action = data.draw(st.sampled_from(["change", "insert", "delete", "copy"]))
        if action == "change":
            content[place] = data.draw(st.integers(0, 255) | codes)
        elif action == "insert":
            content.insert(place, data.draw(st.integers(0, 255) | codes))
        elif action == "delete" and len(content) > 1:
            del content[place]
        else:
            content[place:place] = content[place : place + data.draw(st.integers(0, 30))]
    with contextlib.suppress(DamagedPickle, UnsafePickle):
        value = load(bytes(content), "a.pkl")
        repr(value)  # nothing that crashes when it is looked at


def test_nothing_is_imported_and_no_other_reader_is_used(monkeypatch):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was called")

    data = pickle.dumps({"a": ARRAYS[0], "b": [1.5, "x"]})
    for module, name in (
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle._Unpickler, "find_class"),
        (builtins, "__import__"),
    ):
        monkeypatch.setattr(module, name, never)
    value = load(data, "a.pkl")
    monkeypatch.undo()
    assert same(value, {"a": ARRAYS[0], "b": [1.5, "x"]})


def test_every_instruction_that_could_build_an_object_is_missing():
    building = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
    others = {"PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
    sets = {"EMPTY_SET", "ADDITEMS", "FROZENSET"}
    known = {code.name for code in pickletools.opcodes}
    allowed = {c.name for c in pickletools.opcodes if ord(c.code) in safe_pickle._Reader.dispatch}
    assert known - allowed == building | others | sets | {"DUP"}
