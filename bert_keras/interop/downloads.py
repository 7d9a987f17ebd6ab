"""Weights by name, from this package, Google or the Hugging Face Hub."""

import contextlib
import difflib
import glob
import http.client
import logging
import os
import re
import shutil
import urllib.request
import zipfile
import zlib

from bert_keras import files
from bert_keras.errors import InputError, install_command
from bert_keras.interop import (
    google,
    huggingface,
    huggingface_tokenizer,
    huggingface_weights,
    sentence_transformers,
)
from bert_keras.interop.block import CONFIG
from bert_keras.modeling.sizes import SIZES

logger = logging.getLogger(__name__)

PACKAGED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "packaged")
URL = "https://storage.googleapis.com/bert_models/{date}/{name}.zip"
# Name -> date in the URL. Google released the uncased base model twice. Papers
# used the first release, so this table has the first date.
RELEASED = {
    **{name: "2020_02_20" for name in SIZES if name.startswith("uncased_L")},
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
# Name in keras-hub -> name of the same weights in `RELEASED`.
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


def _with_owner(owner, names):
    return {name: f"{owner}/{name}" for name in names.split()}


# Name -> repository on the Hugging Face Hub. keras-hub's names are added below.
HUB_NAMES = {
    **_with_owner(
        "google-bert",
        "bert-base-uncased bert-base-cased bert-base-chinese "
        "bert-base-multilingual-uncased bert-base-multilingual-cased "
        "bert-large-uncased bert-large-cased "
        "bert-large-uncased-whole-word-masking "
        "bert-large-cased-whole-word-masking",
    ),
    **_with_owner(
        "distilbert",
        "distilbert-base-uncased distilbert-base-cased "
        "distilbert-base-multilingual-cased "
        "distilbert-base-uncased-finetuned-sst-2-english "
        "distilbert-base-uncased-distilled-squad "
        "distilbert-base-cased-distilled-squad",
    ),
    **_with_owner(
        "sentence-transformers",
        "all-MiniLM-L6-v2 all-MiniLM-L6-v1 all-MiniLM-L12-v2 "
        "paraphrase-MiniLM-L3-v2 paraphrase-MiniLM-L6-v2 "
        "paraphrase-MiniLM-L12-v2 multi-qa-MiniLM-L6-cos-v1 "
        "multi-qa-MiniLM-L6-dot-v1 msmarco-MiniLM-L6-cos-v5 "
        "msmarco-MiniLM-L12-cos-v5 multi-qa-distilbert-cos-v1",
    ),
    **_with_owner(
        "BAAI",
        "bge-small-en bge-base-en bge-large-en bge-small-en-v1.5 "
        "bge-base-en-v1.5 bge-large-en-v1.5 bge-base-zh bge-large-zh "
        "bge-small-zh-v1.5 bge-base-zh-v1.5 bge-large-zh-v1.5 llm-embedder",
    ),
    **_with_owner(
        "intfloat",
        "e5-small e5-base e5-large e5-small-v2 e5-base-v2 e5-large-v2",
    ),
    **_with_owner(
        "mixedbread-ai",
        "mxbai-embed-large-v1 mxbai-embed-2d-large-v1 mxbai-embed-xsmall-v1",
    ),
}
# Name in keras-hub -> name of the same embedding model in `HUB_NAMES`.
_EMBEDDERS = {
    "all_minilm_l6_v2_en": "all-MiniLM-L6-v2",
    "all_minilm_l6_v1_en": "all-MiniLM-L6-v1",
    "all_minilm_l12_v2_en": "all-MiniLM-L12-v2",
    "paraphrase_minilm_l3_v2_en": "paraphrase-MiniLM-L3-v2",
    "paraphrase_minilm_l6_v2_en": "paraphrase-MiniLM-L6-v2",
    "paraphrase_minilm_l12_v2_en": "paraphrase-MiniLM-L12-v2",
    "multi_qa_minilm_l6_cos_v1_en": "multi-qa-MiniLM-L6-cos-v1",
    "multi_qa_minilm_l6_dot_v1_en": "multi-qa-MiniLM-L6-dot-v1",
    "msmarco_minilm_l6_cos_v5_en": "msmarco-MiniLM-L6-cos-v5",
    "msmarco_minilm_l12_cos_v5_en": "msmarco-MiniLM-L12-cos-v5",
    "bge_small_en": "bge-small-en",
    "bge_base_en": "bge-base-en",
    "bge_large_en": "bge-large-en",
    "bge_small_v1.5_en": "bge-small-en-v1.5",
    "bge_base_v1.5_en": "bge-base-en-v1.5",
    "bge_large_v1.5_en": "bge-large-en-v1.5",
    "bge_base_zh": "bge-base-zh",
    "bge_large_zh": "bge-large-zh",
    "bge_small_v1.5_zh": "bge-small-zh-v1.5",
    "bge_base_v1.5_zh": "bge-base-zh-v1.5",
    "bge_large_v1.5_zh": "bge-large-zh-v1.5",
    "bge_llm_embedder": "llm-embedder",
    "mxbai_embed_large_v1_en": "mxbai-embed-large-v1",
    "mxbai_embed_2d_large_v1_en": "mxbai-embed-2d-large-v1",
    "mxbai_embed_xsmall_v1_en": "mxbai-embed-xsmall-v1",
}
# Words in a preset's name that show an architecture other than BERT.
OTHER_ARCHITECTURES = re.compile(
    r"\b(albert|bertweet|camembert|deberta|electra|modernbert|mpnet|xlnet|"
    r"(xlm-|distil)?roberta)\b"
)
HUB_NAMES |= {name: HUB_NAMES[hub] for name, hub in _EMBEDDERS.items()}


def presets() -> list[str]:
    """Return the names that `from_preset` accepts besides paths and org/name.

    Returns:
        list of str: names of the weights in this package, of Google's releases
        and of weights on the Hugging Face Hub. keras-hub's names of the same
        weights are listed too. Weights in this package need no network.

    Examples:
        >>> from bert_keras import presets
        >>> "bert_keras_mini_en" in presets()
        True
    """
    return [*packaged_names(), *RELEASED, *ALIASES, *HUB_NAMES]


def packaged_names():
    paths = glob.glob(os.path.join(glob.escape(PACKAGED), "*", CONFIG))
    return sorted(os.path.basename(os.path.dirname(path)) for path in paths)


def suggest_names(preset):
    """Return a sentence that names the presets closest to an unknown name.

    A blank is put before the sentence. If the name shows another architecture,
    the sentence names a class or package for it. Return "" if no preset is
    close. The comparison ignores case and the owner on the Hub, and treats "_",
    "-" and a blank as equal.
    """
    if preset in HUB_NAMES.values():  # it is right, but cannot be reached
        return ""
    simple = _simplify(preset)
    if other := OTHER_ARCHITECTURES.search(simple):
        return (
            f" {preset} has the architecture {other[0]}, not BERT. Load it "
            f"with {huggingface.name_package(other[0])}."
        )
    known = {_simplify(name): name for name in reversed(presets())}
    close = difflib.get_close_matches(simple, known)
    longer = [name for name in close if name.startswith(simple)]
    close = [simple] if simple in known else longer or close
    if not close:
        return ""
    return f" Did you mean {' or '.join(known[name] for name in close)}?"


def _simplify(name):
    return re.sub(r"[\s_]", "-", name.rpartition("/")[2].lower())


def fetch_release(name):
    """Return the folder of a Google release, and download it if missing.

    The folder is inside `KERAS_HOME`, by default ~/.keras.
    """
    folder = os.path.join(files.keras_home(), "models", "bert_keras", name)
    if not os.path.isdir(folder):
        with files.atomic_output(folder) as partial:
            os.mkdir(partial)
            path = os.path.join(partial, f"{name}.zip")
            _download(name, path)
            _unpack(path, partial)
            os.remove(path)
    return folder


def _unpack(path, folder):
    """Unpack the checkpoint, settings and vocabulary into `folder`.

    `zipfile` compares each file with its checksum in the zip.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _find_members(archive)
            for name, member in members.items():
                with (
                    archive.open(member) as source,
                    open(os.path.join(folder, name), "wb") as target,
                ):
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"{os.path.basename(path)} is damaged ({error}). Fetch it again."
        ) from None


def _find_members(archive):
    """Return dict of base name -> `ZipInfo` of each file to unpack."""
    members = {}
    for member in archive.infolist():
        name = member.filename.rpartition("/")[2]
        if ".ckpt" in name or name in (google.CONFIG, google.VOCABULARY):
            members[name] = member
    return members


def _download(name, path):
    # `keras.utils.get_file` would print a progress bar, and has no timeout.
    url = URL.format(date=RELEASED[name], name=name)
    logger.info("Fetching %s to %s", url, path)
    try:
        with (
            urllib.request.urlopen(url, timeout=60) as source,
            open(path, "wb") as target,
        ):
            shutil.copyfileobj(source, target, 1024 * 1024)
            expected = source.headers.get("Content-Length")
            found = target.tell()
            if expected is not None and int(expected) != found:
                raise OSError(f"{found} bytes came instead of {expected}")
    except (http.client.HTTPException, OSError) as error:
        raise InputError(
            f"{url} cannot be fetched ({error}). Download and unpack it by "
            "hand, and pass the path of the folder."
        ) from None


PREFIX = files.HUB
# The settings, tokenizer and safetensors of a model. None of them can run code.
MODEL = (
    *(
        CONFIG,
        *huggingface_tokenizer.INPUT_FILES,
        sentence_transformers.SETTINGS,
    ),
    *(*huggingface_weights.SAFETENSORS, "model-*.safetensors"),
)
WANTED = (
    *MODEL,
    *(f"{huggingface_weights.INNER}/{name}" for name in MODEL),
    *(sentence_transformers.MODULES, sentence_transformers.EMBEDDING),
    f"*_Pooling/{CONFIG}",
    "README.md",  # states the license
    "LICENSE*",
)


def hub_name(preset):
    """Return `org/name` if the preset has the form of a Hub name, else None.

    Raise `InputError` if the preset begins with `hf://`, but has another form.
    """
    name = preset.removeprefix(PREFIX)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and ".." not in name:
        return name
    if preset.startswith(PREFIX):
        raise InputError(
            f"{preset} does not have the form of a Hub name. Expected "
            f"{PREFIX}org/name.{suggest_names(preset)}"
        )
    return None


def fetch_from_hub(name, revision=None):
    """Download `org/name`. Return (folder, "hf://org/name@commit").

    `huggingface_hub` handles the access token, the cache and the offline mode.
    """
    hub = huggingface_hub(f"There is no folder {name} here. A download")
    folder = _call_hub(
        hub.snapshot_download,
        name,
        revision=revision,
        allow_patterns=list(WANTED),
    )
    commit = os.path.basename(folder)  # the cache names folders by commit
    if not huggingface_weights.has_weights(folder):
        listed = _call_hub(hub.list_repo_files, name, revision=commit)
        if huggingface_weights.TENSORFLOW in listed:
            _call_hub(
                hub.snapshot_download,
                name,
                revision=commit,
                allow_patterns=[*WANTED, huggingface_weights.TENSORFLOW],
            )
            return folder, f"{PREFIX}{name}@{commit}"
        unread = list(filter(huggingface_weights.is_unread, listed))
        if unread:
            raise InputError(
                f"{name} has no safetensors file on the Hub, only {unread[0]}. "
                f"{huggingface_weights.CONVERT}."
            )
    return folder, f"{PREFIX}{name}@{commit}"


def huggingface_hub(purpose):
    """Return the package `huggingface_hub`.

    Args:
        purpose: beginning of the message, before " needs huggingface-hub".

    Raises:
        InputError: the package is missing, or is not of version 1, with whose
            errors `hub_errors` works.
    """
    needs = f"{purpose} needs huggingface-hub"
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise InputError(f"{needs}: {install_command('hub')}.") from None
    version = huggingface_hub.__version__
    if version.partition(".")[0] != "1":
        raise InputError(
            f"{needs} 1, and {version} is installed: {install_command('hub')}."
        )
    return huggingface_hub


@contextlib.contextmanager
def hub_errors(message):
    """Raise `InputError` for an error of the Hub in a `with` block.

    Args:
        message: function that gets the Hub's error text and returns a message.
    """
    from httpx import HTTPError  # raised if the Hub cannot be reached
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (HTTPError, HFValidationError, OSError, ValueError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise InputError(message(reason)) from None


def _call_hub(function, name, **arguments):
    with hub_errors(
        lambda reason: (
            f"There is no folder {name} here, and {name} cannot be fetched "
            f"from the Hugging Face Hub ({reason}).{suggest_names(name)} Check "
            "the path or name, or download the folder and pass its path."
        )
    ):
        return function(name, **arguments)
