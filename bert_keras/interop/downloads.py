"""Weights by name: of this package, of the original's releases, on the Hub."""

import contextlib
import difflib
import glob
import hashlib
import logging
import os
import re
import shutil
import urllib.error
import urllib.request
import zipfile

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop import (
    google,
    huggingface,
    sentence_transformers,
    text_settings,
)
from bert_keras.interop.block import CONFIG
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.sizes import SIZES

logger = logging.getLogger(__name__)

# Folders of the weights that come with this package.
PACKAGED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "packaged")
URL = "https://storage.googleapis.com/bert_models/{date}/{name}.zip"
# Name -> date in its URL. The base model was released again with the small
# ones; papers used its first release.
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
# SHA-256 of the files in a zip, in the order of HASHED. NVIDIA published them
# (DeepLearningExamples, GooglePretrainedWeightDownloader.py); no hash of the
# small and the whole-word models is published.
HASHED = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)
SHA256 = {
    "uncased_L-12_H-768_A-12": (
        "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
    ),
    "uncased_L-24_H-1024_A-16": (
        "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
    ),
    "cased_L-12_H-768_A-12": (
        "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
    ),
    "cased_L-24_H-1024_A-16": (
        "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
    ),
    "multilingual_L-12_H-768_A-12": (
        "49063bb061390211d2fdd108cada1ed86faa5f90b80c8f6fdddf406afa4c4624",
        "87b44292b452f6c05afa49b2e488e7eedf79ea4f4c39db6f2f4b37764228ef3f",
        "87c372c1a3b1dc7effaaa9103c80a81b3cbab04c7933ced224eec3b8ad2cc8e7",
        "3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429",
    ),
    "chinese_L-12_H-768_A-12": (
        "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
        "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
        "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
    ),
    "multi_cased_L-12_H-768_A-12": (
        "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
        "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
        "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
    ),
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


def _with_owner(owner, names):
    return {name: f"{owner}/{name}" for name in names.split()}


# Names without an owner -> folder on the Hugging Face Hub.
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
# keras-hub's names of embedding models -> names above.
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
HUB_NAMES |= {name: HUB_NAMES[hub] for name, hub in _EMBEDDERS.items()}


def presets() -> list[str]:
    """Return the names that `from_preset` takes, besides paths and org/name.

    Returns:
        list of str: names of the weights that come with this package and need
        no network, names that the original released, and names of weights on
        the Hugging Face Hub, as transformers, sentence-transformers and
        keras-hub call them.
    """
    return [*packaged_names(), *RELEASED, *ALIASES, *HUB_NAMES]


def packaged_names():
    """Return the names of the weights that come with this package."""
    paths = glob.glob(os.path.join(glob.escape(PACKAGED), "*", CONFIG))
    return sorted(os.path.basename(os.path.dirname(path)) for path in paths)


def suggest_names(preset):
    """Return a sentence that names the presets closest to an unknown name.

    Upper case, blanks, and the owner on the Hub make no difference.
    """
    known = {_simplify(name): name for name in reversed(presets())}
    simple = _simplify(preset)
    close = difflib.get_close_matches(simple, known)
    longer = [name for name in close if name.startswith(simple)]
    close = [simple] if simple in known else longer or close
    if not close:
        return ""
    return f" Did you mean {' or '.join(known[name] for name in close)}?"


def _simplify(name):
    return re.sub(r"[\s_]", "-", name.rpartition("/")[2].lower())


def fetch_release(name):
    """Return the path of the released zip; fetch it if it is not there yet.

    It is kept below `KERAS_HOME`, by default ~/.keras. Its files must have the
    published hashes, if there are any; they are checked before the zip gets
    its name.
    """
    folder = os.path.join(files.keras_home(), "models", "bert_keras")
    path = os.path.join(folder, f"{name}.zip")
    if not os.path.exists(path):
        with files.atomic_output(path) as partial:
            _download(name, partial)
            _check_hashes(name, partial)
    return path


def _check_hashes(name, path):
    """Raise `WeightsError` unless a zip has the files that were released."""
    if name not in SHA256:
        logger.warning(
            "No hash of %s is published: it is checked by its length alone.",
            name,
        )
        return
    found = _hashes(path)
    for file, expected in zip(HASHED, SHA256[name], strict=True):
        if found.get(file) != expected:
            raise WeightsError(
                f"{name}.zip",
                f"{file} in it is not the one that was released",
                "Fetch it again, from another network",
                expected=f"the SHA-256 {expected}",
                found=found.get(file, "none"),
            )


def _hashes(path):
    """Return the SHA-256 of each file in a zip, by its name without folders."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # Others can swell without bound while they are read.
                if member.compress_type in google.METHODS:
                    with archive.open(member) as file:
                        digest = hashlib.file_digest(file, "sha256")
                    name = member.filename.rpartition("/")[2]
                    found[name] = digest.hexdigest()
    except google.DAMAGED as error:
        raise WeightsError(
            path, f"the zip is damaged ({error})", "Fetch it again"
        ) from None
    return found


def _download(name, path):
    # keras.utils.get_file prints, and has no timeout.
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
    except (urllib.error.URLError, OSError) as error:
        raise InputError(
            f"{url} cannot be fetched ({error}). Fetch it by hand and pass "
            "its path."
        ) from None


# Folders on the Hugging Face Hub, through `huggingface_hub`.

PREFIX = "hf://"
# Settings, tokenizer and safetensors; nothing that can run code.
MODEL = (
    *(CONFIG, *text_settings.READ, sentence_transformers.SETTINGS),
    *(*huggingface.SAFETENSORS, "model-*.safetensors"),
)
WANTED = (
    *MODEL,
    *(f"{huggingface.INNER}/{name}" for name in MODEL),
    *(sentence_transformers.MODULES, sentence_transformers.EMBEDDING),
    f"*_Pooling/{CONFIG}",
    "README.md",  # states the license
    "LICENSE*",
)


def hub_name(preset):
    """Return `org/name` of a preset on the Hub, or None."""
    name = preset.removeprefix(PREFIX)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and ".." not in name:
        return name
    if preset.startswith(PREFIX):
        raise InputError(
            f"{preset} is no name on the Hub. Expected {PREFIX}org/name."
            f"{suggest_names(preset)}"
        )
    return None


def fetch_from_hub(name, revision=None):
    """Return the local folder of `org/name`, and its source with the commit.

    Tokens, cache and offline mode are as `huggingface_hub` has them.
    """
    hub = huggingface_hub(f"{name} is no folder here: fetching it")
    folder = _call_hub(
        hub.snapshot_download,
        name,
        revision=revision,
        allow_patterns=list(WANTED),
    )
    commit = os.path.basename(folder)  # the cache calls the folder by it
    if not huggingface.has_weights(folder):
        listed = _call_hub(hub.list_repo_files, name, revision=commit)
        unread = list(filter(huggingface.is_unread, listed))
        if unread:
            raise InputError(
                f"{name} has no safetensors on the Hub, only {unread[0]}. "
                f"{huggingface.CONVERT}."
            )
    return folder, f"{PREFIX}{name}@{commit}"


def huggingface_hub(purpose):
    """Return the package, or raise an `InputError` with how to install it.

    Args:
        purpose: what needs it, as the subject of a sentence.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise InputError(
            f"{purpose} needs huggingface-hub: pip install bert_keras[hub]."
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def hub_errors(message):
    """Raise an `InputError` if the Hub refuses or cannot be reached.

    Args:
        message: function of the Hub's reason that returns the sentence.
    """
    from httpx import HTTPError  # if the Hub cannot be reached
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (HTTPError, HFValidationError, OSError, ValueError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise InputError(message(reason)) from None


def _call_hub(function, name, **arguments):
    """Call a function of the Hub; raise an `InputError` if it fails."""
    with hub_errors(
        lambda reason: (
            f"{name} is no folder here, and cannot be fetched from the "
            f"Hugging Face Hub ({reason}).{suggest_names(name)} Check the "
            "name, or fetch the folder by hand and pass its path."
        )
    ):
        return function(name, **arguments)
