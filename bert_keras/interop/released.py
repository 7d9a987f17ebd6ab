"""The weights that the original released, by name, fetched once."""

import difflib
import logging
import os
import re
import shutil
import urllib.error
import urllib.request

from bert_keras import files
from bert_keras.errors import InputError

logger = logging.getLogger(__name__)

URL = "https://storage.googleapis.com/bert_models/{date}/{name}.zip"
SMALL = [
    f"uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
]
# Name -> the day in its address. The small ones came out together, with the
# base model once more; its first release is the one that papers used.
RELEASED = {
    **dict.fromkeys(SMALL, "2020_02_20"),
    "uncased_L-12_H-768_A-12": "2018_10_18",
    "uncased_L-24_H-1024_A-16": "2018_10_18",
    "cased_L-12_H-768_A-12": "2018_10_18",
    "cased_L-24_H-1024_A-16": "2018_10_18",
    "multilingual_L-12_H-768_A-12": "2018_11_03",
    "chinese_L-12_H-768_A-12": "2018_11_03",
    "multi_cased_L-12_H-768_A-12": "2018_11_23",
    "wwm_uncased_L-24_H-1024_A-16": "2019_05_30",
    "wwm_cased_L-24_H-1024_A-16": "2019_05_30",
}
# keras-hub's names for the same weights.
ALIASES = {
    "bert_tiny_en_uncased": "uncased_L-2_H-128_A-2",
    "bert_small_en_uncased": "uncased_L-4_H-512_A-8",
    "bert_medium_en_uncased": "uncased_L-8_H-512_A-8",
    "bert_base_en_uncased": "uncased_L-12_H-768_A-12",
    "bert_base_en": "cased_L-12_H-768_A-12",
    "bert_base_zh": "chinese_L-12_H-768_A-12",
    "bert_base_multi": "multi_cased_L-12_H-768_A-12",
    "bert_large_en_uncased": "uncased_L-24_H-1024_A-16",
    "bert_large_en": "cased_L-24_H-1024_A-16",
}


def released_name(preset):
    """The original's name for a preset, or None where it has none."""
    name = ALIASES.get(preset, preset)
    return name if name in RELEASED else None


# The names of the same and of close relatives on the Hugging Face Hub.
ON_THE_HUB = [
    f"hf://google-bert/bert-{name}"
    for name in (
        "base-uncased",
        "base-cased",
        "base-chinese",
        "base-multilingual-uncased",
        "base-multilingual-cased",
        "large-uncased",
        "large-cased",
        "large-uncased-whole-word-masking",
        "large-cased-whole-word-masking",
    )
]


def nearest(preset):
    """A sentence that names the known presets closest to an unknown one.

    Upper case, blanks, and the owner on the Hub make no difference.
    """
    names = [*ON_THE_HUB, *ALIASES, *RELEASED]
    known = {_bare(name): name for name in reversed(names)}
    wanted = _bare(preset)
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.8)
    found = [name for name in known if name == wanted] or [
        *dict.fromkeys(
            [n for n in known if wanted and n.startswith(f"{wanted}-")][-3:]
            + close
        )
    ]
    if not found:
        return ""
    return f" Did you mean {' or '.join(known[n] for n in found[:3])}?"


def _bare(name):
    return re.sub(r"[\s_]", "-", name.rpartition("/")[2].lower())


def fetch(name):
    """Path of the released zip; downloaded where it is not there yet.

    It is kept below `KERAS_HOME`, which is ~/.keras where it is not set.
    """
    home = os.environ.get("KERAS_HOME", os.path.expanduser("~/.keras"))
    path = os.path.join(home, "models", "bert_keras", f"{name}.zip")
    if not os.path.exists(path):
        _download(URL.format(date=RELEASED[name], name=name), path)
    return path


def _download(url, path):
    logger.info("Fetching %s to %s", url, path)
    try:
        with (
            urllib.request.urlopen(url, timeout=60) as source,
            files.written_beside(path) as partial,
            open(partial, "wb") as target,
        ):
            shutil.copyfileobj(source, target, 1024 * 1024)
            _check_length(source.headers, target.tell())
    except (urllib.error.URLError, OSError) as error:
        raise InputError(
            f"{url} cannot be fetched ({error}). Fetch it by hand and give "
            "its path."
        ) from None


def _check_length(headers, found):
    expected = headers.get("Content-Length")
    if expected is not None and int(expected) != found:
        raise OSError(f"{found} bytes came instead of {expected}")
