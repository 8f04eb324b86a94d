"""Damage to bytes, JSON documents, NumPy archives and folders, each decided by a random generator."""

from __future__ import annotations

import copy
import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

HUGE = "99999999999999999999"
# Text for any place where a number, a name or a list of numbers is expected.
ODD_TEXT = (
    *("", " ", "x", "-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", HUGE, "-" + HUGE, "9" * 5000),
    *("1,2,3", "1,,2", ",", "٣", "²", "0x10", "1_000", "true", "None", "a" * 3000, "é", "\udcff", "--", "..", "/", "~"),
    *(
        "a\nb",
        "\x00",
        "<b>",
        "%s",
        "{}",
        "$HOME",
        "1000000000",
        "-0.0",
        "1e18",
        "2",
        "3",
        "../../etc",
        "\N{GRINNING FACE}",
    ),
)
ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2, 3, 10**9, 10**20, -(10**20), 1.5, 1e308, float("nan"), float("inf"), "", "x"),
    *(
        "../x",
        "/etc/passwd",
        [],
        {},
        [[]],
        [None],
        [1, "x"],
        {"a": 1},
        [-1],
        [10**20],
        "a" * 1000,
        "\ud800",
        [[1, 2], [3]],
    ),
)
_ODD_TYPES = ("f2", "f4", ">f8", "i1", "u8", "i8", "?", "c16", "S3", "U3", "M8[s]", "V8", "f8,i4")
_ODD_SHAPES = (
    "(10000000000,)",
    "(99999999999999999999,)",
    "(-1,)",
    "(2, 3)",
    "()",
    "(0,)",
    "(2**40,)",
    "(1,)*40",
    "None",
    "(300000000,)",
)


def damaged(random: Random, content: bytes) -> bytes:
    """Bytes with one or a few changes: flipped bits, cuts, repeats, zeros, other numbers."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at = random.randrange(len(found) + 1)
        length = min(random.choice((1, 2, 4, 8, 64, 1000)), max(len(found) - at, 1))
        kind = random.randrange(9)
        if kind <= 2 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            del found[at : at + length]
        elif kind == 5:
            found[at : at + length] = bytes(length) if random.random() < 0.5 else b"\xff" * length
        elif kind == 6:
            found[at:at] = found[at : at + length] * random.choice((1, 2, 50))
        elif kind == 7:
            found[at : at + length] = random.randbytes(length)
        else:
            found[at:at] = random.choice(ODD_TEXT).encode("utf-8", "surrogatepass")
    return bytes(found)


def odd_document(random: Random, document: Any) -> Any:
    """A JSON document in which one or a few entries are gone, or others than they were."""
    found = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(found))
        if not places:
            return random.choice(ODD_VALUES)
        holder, key = random.choice(places)
        kind = random.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[random.choice(("", "x", "a/b", "../x", str(key) + "x"))] = holder.pop(key)
        elif kind == 2:
            holder[key] = copy.deepcopy(random.choice([other[name] for other, name in places]))
        elif kind == 3 and isinstance(holder[key], int | float):
            holder[key] = random.choice((-holder[key], holder[key] + 1, holder[key] * 10**6, str(holder[key]), 0))
        else:
            holder[key] = copy.deepcopy(random.choice(ODD_VALUES))
    return found


def _places(document: Any) -> Any:
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in entries:
        yield document, key
        yield from _places(value)


def odd_json(random: Random, content: bytes) -> bytes:
    """The bytes of a JSON file with other entries, or damaged; sometimes nested beyond any parser."""
    if random.random() < 0.02:
        return b"[" * 100_000
    try:
        document = json.loads(content)
    except ValueError:
        return damaged(random, content)
    if random.random() < 0.3:
        return damaged(random, content)
    return json.dumps(odd_document(random, document)).encode("utf-8", "surrogatepass")


def archive_of(members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def npy(array: np.ndarray, *, shape: str | None = None, kind: str | None = None) -> bytes:
    """An array as numpy.save writes it, perhaps with another shape or type in its header."""
    array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    header = f"{{'descr': {kind or repr(array.dtype.str)}, 'fortran_order': False, 'shape': {shape or array.shape}, }}"
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header.encode() + b"\n" + array.tobytes()


def bomb(name: str, numbers: int) -> bytes:
    """A small archive of one array of zeros; written in pieces, since the array exceeds the memory limit."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(npy(np.zeros(0), shape=f"({numbers // 4}, 2, 2)"))
            for _ in range(numbers // 2**20):
                member.write(bytes(8 * 2**20))
    return stream.getvalue()


def odd_archive(random: Random, arrays: Mapping[str, np.ndarray]) -> bytes:
    """An npz file of these arrays with a fault: in the archive, in a member, in a header or in an array."""
    changed = dict(arrays)
    name = random.choice(sorted(changed))
    members = {f"{one}.npy": npy(array) for one, array in changed.items()}
    kind = random.randrange(10)
    if kind <= 2:
        return damaged(random, archive_of(members, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))))
    if kind <= 4:
        # Damage inside a member whose checksum fits, so that NumPy comes to see it.
        part = random.choice((128, len(members[f"{name}.npy"])))
        content = members[f"{name}.npy"]
        members[f"{name}.npy"] = damaged(random, content[:part]) + content[part:]
    elif kind == 5:
        members[f"{name}.npy"] = npy(changed[name], shape=random.choice(_ODD_SHAPES))
    elif kind == 6:
        members[f"{name}.npy"] = npy(
            changed[name], kind=random.choice((*map(repr, _ODD_TYPES), "'|O'", "'<f8'*9", "[]", "x"))
        )
    elif kind == 7:
        members[f"{name}.npy"] = npy(_odd_array(random, changed[name]))
    elif kind == 8:
        action = random.randrange(4)
        if action == 0:
            del members[f"{name}.npy"]
        elif action == 1:
            members[random.choice(("x.npy", "a/b.npy", "../x.npy", "attention_9.npy", "y", ".npy"))] = members[
                f"{name}.npy"
            ]
        elif action == 2:
            members[f"{name}.npy"] = random.choice(
                (b"", b"text", b"\x93NUMPY", b"\x80\x04K\x01.", b"\x93NUMPY\x09\x00")
            )
        else:
            members |= {f"more_{at}.npy": npy(np.zeros(1)) for at in range(40)}
    else:
        method = random.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        content = archive_of(members, method)
        return content if random.random() < 0.3 else damaged(random, content)
    return archive_of(members)


def _odd_array(random: Random, array: np.ndarray) -> np.ndarray:
    kind = random.randrange(8)
    if kind == 0:
        return array.astype(random.choice(("f2", "f4", ">f8", "i1", "u8", "?", "c16", "S3", "U3")))
    if kind == 1 and array.size:
        found = array.astype(float)
        found.flat[random.randrange(array.size)] = random.choice(
            (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1e200)
        )
        return found
    if kind == 2:
        return array[..., None]
    if kind == 3:
        return array.reshape(-1)
    if kind == 4:
        return array[:0] if array.ndim else array
    if kind == 5:
        return array * random.choice((0, -1, 1e-300, 1e300))
    if kind == 6:
        return np.asarray(random.choice((0, -1, 1.5, np.nan, 10**18, "x")))
    return array[:1] if array.ndim else np.asarray([array, array])


def odd_folder(random: Random, folder: Path) -> str:
    """Damages one file or folder below a folder, and says how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    file = random.choice(files)
    kind = random.randrange(9)
    where = file.relative_to(folder)
    if kind == 0:
        file.unlink()
        return f"no {where}"
    if kind == 1:
        shutil.rmtree(file.parent) if file.parent != folder else file.unlink()
        return f"no {where.parent}"
    if kind == 2:
        file.write_bytes(b"")
        return f"{where} emptied"
    if kind == 3:
        content = file.read_bytes()
        file.write_bytes(content[: random.randrange(len(content) + 1)])
        return f"{where} cut"
    if kind == 4:
        other = random.choice(files)
        file.write_bytes(other.read_bytes())
        return f"{where} is {other.relative_to(folder)}"
    if kind == 5 and random.random() < 0.3:
        file.unlink()
        file.mkdir()
        return f"{where} is a folder"
    if file.suffix == ".json":
        file.write_bytes(odd_json(random, file.read_bytes()))
        return f"{where} with other entries"
    content = bytearray(file.read_bytes())
    if content and random.random() < 0.5:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.write_bytes(content)
        return f"{where} with a bit flipped"
    file.write_bytes(damaged(random, bytes(content)))
    return f"{where} damaged"


def odd_safetensors(random: Random, content: bytes) -> bytes:
    """A safetensors file with damage anywhere, or with other entries in its header."""
    if random.random() < 0.4:
        return damaged(random, content)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    if random.random() < 0.5 and "header" in metadata:
        inner = odd_document(random, json.loads(metadata["header"]))
        metadata["header"] = json.dumps(inner)
    else:
        header = odd_document(random, header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    body = content[8 + length :]
    return len(text).to_bytes(8, "little") + text + (body if random.random() < 0.8 else damaged(random, body))
