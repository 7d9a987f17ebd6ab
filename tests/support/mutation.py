"""Random changes of one file in a folder, to fuzz the readers."""

import json
import os
import struct

from bert_keras import files, json_files

HOSTILE = (
    None,
    True,
    -1,
    0,
    1,
    3.5,
    2**31,
    2**63,
    10**400,
    "",
    "x" * 100_000,
    "\ud800",
    "../../../etc/passwd",
    "\x00",
    [],
    {},
    [[[]]],
    {"module": "os", "class_name": "system", "config": {}},
    "__import__('os').abort()",
)


# Keys that `_spoil` adds to dicts. Most are names of constructor arguments.
KEYS = ("self", "encoder", "name", "dtype", "examples_per_row", "other")


def mutate(path, random):
    """Change `path`, or one file if it is a folder; return a description."""
    file = random.choice(files.walk(path) if os.path.isdir(path) else [path])
    what = f"{os.path.relpath(file, path)}: "
    if random.random() < 0.03:
        replace = random.choice((pipe, device, link_out, folder))
        replace(file)
        return what + replace.__name__
    with open(file, "rb") as stream:
        data = stream.read()
    change = random.choice(_changes(file))
    with open(file, "wb") as stream:
        stream.write(change(data, random))
    manifest = os.path.join(path, "store.json")
    if not os.path.exists(manifest):
        manifest = os.path.join(path, "manifest.json")
    if os.path.exists(manifest) and random.random() < 0.8:
        reseal(manifest)
        what += "resealed "
    return what + change.__name__


def pipe(path):
    """Replace the file by a named pipe that has no writer."""
    os.remove(path)
    os.mkfifo(path)


def device(path):
    """Replace the file by a link to a device that never ends."""
    os.remove(path)
    os.symlink("/dev/zero", path)


def link_out(path):
    """Replace the file by a link to a file outside the folder."""
    os.remove(path)
    os.symlink("/etc/passwd", path)


def folder(path):
    """Replace the file by a folder."""
    os.remove(path)
    os.mkdir(path)


def reseal(path):
    """Update sizes and hashes in a data manifest, and its own hash."""
    try:
        with open(path, "rb") as file:
            manifest = json.load(file)
        rest = {k: v for k, v in manifest.items() if k != "sha256"}
    except (ValueError, AttributeError, RecursionError):
        return
    entries, shards = rest.get("files"), rest.get("shards")
    named = list(entries.items()) if isinstance(entries, dict) else []
    for shard in shards if isinstance(shards, list) else []:
        named += [(shard.get("name"), shard)] if type(shard) is dict else []
    for name, entry in named:
        place = os.path.join(os.path.dirname(path), str(name))
        known = files.is_plain_name(name) and os.path.isfile(place)
        if known and type(entry) is dict:
            entry["bytes"] = os.path.getsize(place)
            entry["sha256"] = files.sha256(place)
    with open(path, "w") as file:
        json.dump(rest | {"sha256": json_files.json_hash(rest)}, file)


def _changes(file):
    """Return the mutations for a file: general ones and those of its format."""
    changes = [flip, cut, repeat, overwrite]
    if file.endswith(".json"):
        changes += [json_value] * 6
    if file.endswith(".safetensors"):
        changes += [safetensors_header] * 8
    if file.endswith(".index"):
        changes += [index_entry] * 8
    if file.endswith(".h5"):
        changes += [flip, overwrite, small_number] * 2
    return changes


def flip(data, random):
    """Flip up to 20 bits."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 20))):
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def cut(data, random):
    return data[: random.randrange(len(data) + 1)]


def repeat(data, random):
    """Repeat up to 199 bytes."""
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at : at + random.randrange(1, 200)] + data[at:]


def overwrite(data, random):
    """Replace up to 64 bytes by zeros, 0xff, or other bytes of the file."""
    at, size = random.randrange(len(data) + 1), random.choice((1, 4, 8, 64))
    start = random.randrange(len(data) + 1)
    new = random.choice(
        (bytes(size), b"\xff" * size, data[start : start + size])
    )
    return data[:at] + new + data[at + len(new) :]


def small_number(data, random):
    """Replace 8 bytes by an integer, because counts and sizes have 8 bytes."""
    at = random.randrange(len(data) + 1)
    number = struct.pack("<Q", random.choice((0, 1, 2, 255, 2**31, 2**63)))
    return data[:at] + number + data[at + 8 :]


def json_value(data, random):
    """Replace, add or remove one value of the JSON."""
    try:
        value = json.loads(data)
    except ValueError:
        return flip(data, random)
    if random.random() < 0.05:
        return b"[" * 100_000
    _spoil(value, random)
    return json.dumps(value).encode()


def _spoil(value, random):
    """Change, add or remove one item of a list or a dict, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    key = random.choice(keys)
    if isinstance(value[key], (dict, list)) and random.random() < 0.7:
        _spoil(value[key], random)
    elif random.random() < 0.15:
        del value[key]
    elif isinstance(value, dict) and random.random() < 0.3:
        value[random.choice(KEYS)] = random.choice(HOSTILE)
    else:
        value[key] = random.choice(HOSTILE)


def safetensors_header(data, random):
    """Change the header's JSON, and update the length field."""
    size = int.from_bytes(data[:8], "little")
    header = json_value(data[8 : 8 + size], random)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def index_entry(data, random):
    """Change bytes in a block of a TensorFlow index; update the checksum."""
    from bert_keras.interop import tensor_bundle as bundle

    try:
        footer = data[-bundle.FOOTER :]
        _, at = bundle._handle(footer, 0)
        (start, size), _ = bundle._handle(footer, at)
        (_, value), *_ = bundle._block(data, start, size)
        (start, size), _ = bundle._handle(value, 0)
    except (IndexError, ValueError):
        return flip(data, random)
    block = bytearray(data[start : start + size + 1])
    for _ in range(random.choice((1, 1, 2, 4))):
        new = random.choice((0, 1, 127, 255, random.randrange(256)))
        block[random.randrange(size)] = new
    end = start + size + 5
    checksum = struct.pack("<I", _masked(_crc32c(bytes(block))))
    return data[:start] + bytes(block) + checksum + data[end:]


def _crc32c(data):
    """Return the CRC-32C (Castagnoli), computed bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def _masked(checksum):
    """Return the checksum as LevelDB's tables store it."""
    turned = (checksum >> 15) | (checksum << 17)
    return (turned + 0xA282EAD8) & 0xFFFFFFFF
