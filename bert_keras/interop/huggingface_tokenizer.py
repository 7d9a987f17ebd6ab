"""Reader and writer of the tokenizer files in a Hugging Face folder.

The vocabulary is in `vocab.txt` or in `tokenizer.json`; transformers 5 writes
only `tokenizer.json`. The reader applies the settings that `WordPieceTokenizer`
has. It refuses other settings that change the original BERT's ids.
"""

import json
import os
import warnings

from bert_keras import json_files, versions
from bert_keras.interop import text_settings
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError
from bert_keras.json_files import BOOLEAN, COUNT, TEXT, TEXTS
from bert_keras.text.vocabulary import read_pieces, write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN

VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer.json"
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
OUTPUT_FILES = (VOCABULARY, TOKENIZER, SETTINGS)
INPUT_FILES = (*OUTPUT_FILES, SPECIAL, ADDED)
# Maximum characters of a word in transformers. The original BERT allows 200.
MAX_WORD_LENGTH = 100
GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
CLASSES = (
    *("BertTokenizer", "BertTokenizerFast"),
    *("DistilBertTokenizer", "DistilBertTokenizerFast"),
    *GENERAL_CLASSES,
)
TOKENS = {f"{t.strip('[]').lower()}_token": t for t in SPECIAL_TOKENS}
# Settings in the files SETTINGS and SPECIAL. Each is a list or dict of tokens.
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
RIGHT = ("right", "Right", None)

# Settings that can change the ids -> values that give the original BERT's ids.
# A setting that is not listed does not change them, or another function in this
# file reads it. First tokenizer_config.json and special_tokens_map.json:
SETTINGS_RULES: dict[str, tuple] = {
    **{name: (token,) for name, token in TOKENS.items()},
    "add_bos_token": (False, None),
    "add_eos_token": (False, None),
    "clean_text": (True, None),
    "do_basic_tokenize": (True, None),
    "do_subword_tokenize": (True, None),
    "do_word_tokenize": (True, None),
    "never_split": (None, []),
    "pad_token_type_id": (0, None),
    "padding_side": RIGHT,
    "tokenize_chinese_chars": (True, None),
    "truncation_side": RIGHT,
    "wordpieces_prefix": ("##", None),
    # BertJapaneseTokenizer writes these settings.
    "subword_tokenizer_type": ("wordpiece", None),
    "word_tokenizer_type": ("basic", None),
}
# tokenizer.json. transformers cuts or pads only on request, so the other
# settings of truncation and padding do not matter.
TOKENIZER_RULES: dict[str, dict] = {
    "model": {
        "continuing_subword_prefix": ("##", None),
        "type": ("WordPiece", None),  # early files have no type
        "unk_token": (UNKNOWN, None),
    },
    "normalizer": {
        "clean_text": (True, None),
        "handle_chinese_chars": (True, None),
        "type": ("BertNormalizer",),
    },
    "padding": {
        "direction": RIGHT,
        "pad_token": ("[PAD]", None),
        "pad_type_id": (0, None),
    },
    "pre_tokenizer": {"type": ("BertPreTokenizer",)},
    "truncation": {"direction": RIGHT},
}


def read_folder(folder):
    """Return the `TextSettings` of a folder with only a tokenizer.

    Return None for a model's folder and for any other path.
    """
    if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
        return None
    if os.path.exists(os.path.join(folder, "config.json")):
        return None
    # Ignore lengths from 2**31 on: without a length, transformers writes 1e30.
    return versions.read_unchanged(
        folder, lambda: read_text(folder, Fields({}, folder), 2**31)
    )


def read_text(folder, config, positions):
    """Return the `TextSettings` of a folder; None without a vocabulary.

    `config` is the `Fields` of config.json. `positions` is the model's maximum
    sequence length.
    """
    names = (VOCABULARY, TOKENIZER)
    if not any(os.path.exists(os.path.join(folder, name)) for name in names):
        return None
    added, special, settings, tokenizer = (
        read_json(os.path.join(folder, name), optional=True)
        for name in (ADDED, SPECIAL, SETTINGS, TOKENIZER)
    )
    kind = _read_class(settings, config)
    _check_files(settings, special, tokenizer, config)
    path = os.path.join(folder, VOCABULARY)
    if not os.path.exists(path):
        pieces = _read_pieces(tokenizer)
    else:
        pieces = text_settings.check_pieces(read_pieces(path), path)
        if tokenizer.values:
            _check_ids(tokenizer, pieces)
    cases = _read_cases(settings, tokenizer)
    _check_extra_tokens(
        *(added, special, settings, tokenizer, pieces),
        lowercase=set(cases.values()) != {False},
    )
    return text_settings.TextSettings(
        pieces,
        _read_arguments(settings, tokenizer, kind),
        cases,
        _read_length(settings, positions),
        **read_prompts(settings),
        keys={
            name: settings.get(name, kind)
            for name, kind in (("text_keys", TEXTS), ("label_key", TEXT))
            if name in settings and "text_keys" in settings
        },
    )


def read_prompts(fields):
    """Return the prompts in a settings file as arguments of `TextSettings`.

    Args:
        fields: `Fields` of the file.

    Returns:
        dict of `prompts` ({} if missing), `prompt` (the file's
        `default_prompt_name`, or None) and `include_prompt` (True if missing).
    """
    prompts = fields.object("prompts", {}).values
    if not all(isinstance(text, str) for text in prompts.values()):
        fields.refuse("prompts", "an object whose values are texts", prompts)
    name = "default_prompt_name"
    prompt = fields.get(name, TEXT) if name in fields else None
    if prompt is not None and prompt not in prompts:
        fields.refuse(name, f"one of {', '.join(prompts) or 'none'}", prompt)
    return {
        "prompts": prompts,
        "prompt": prompt,
        "include_prompt": fields.get("include_prompt", BOOLEAN, True),
    }


def _read_arguments(settings, tokenizer, kind):
    """Return arguments of `WordPieceTokenizer`, except vocabulary and case.

    As in transformers, the tokenizer's class `kind` decides which file has
    `strip_accents`: tokenizer.json for `GENERAL_CLASSES`, if it exists, else
    tokenizer_config.json. None means the same value as `lowercase`.
    """
    is_general = kind in GENERAL_CLASSES and tokenizer.values
    source = tokenizer.object("normalizer", {}) if is_general else settings
    strip_accents = None
    if "strip_accents" in source:
        strip_accents = source.get("strip_accents", BOOLEAN)
    return {
        "strip_accents": strip_accents,
        "max_word_length": tokenizer.object("model", {}).get(
            "max_input_chars_per_word", COUNT, MAX_WORD_LENGTH
        ),
        # By default, transformers reads "[MASK]" in a text as one token.
        "keep_special_tokens": not settings.get(
            "split_special_tokens", BOOLEAN, False
        ),
    }


def _read_cases(settings, tokenizer):
    """Return dict of file path -> the file's lower-case setting, a bool."""
    cases = {}
    if "do_lower_case" in settings:
        cases[settings.path] = settings.get("do_lower_case", BOOLEAN)
    normal = tokenizer.object("normalizer", {})
    if "lowercase" in normal:
        cases[tokenizer.path] = normal.get("lowercase", BOOLEAN)
    return cases


def _read_length(settings, positions):
    """Return the sequence length that the settings state, or None.

    Ignore a `model_max_length` of `positions` (the model's limit) or more.
    """
    if "sequence_length" in settings:  # bert_keras wrote the folder
        return settings.get("sequence_length", COUNT)
    length = settings.get("model_max_length")
    if type(length) in (int, float) and length >= positions:
        return None
    return None if length is None else settings.get("model_max_length", COUNT)


def _read_pieces(tokenizer):
    ids, path = tokenizer.object("model").object("vocab").values, tokenizer.path
    has_ids = all(type(value) is int for value in ids.values())
    if not has_ids or set(ids.values()) != set(range(len(ids))):
        raise WeightsError(
            path,
            "the ids of the vocabulary have gaps or duplicates",
            "Put the vocab.txt that the model was trained with into the folder",
            expected=f"each id from 0 to {len(ids) - 1} once",
            found="other ids",
        )
    return text_settings.check_pieces(sorted(ids, key=ids.get), path)


def _read_class(settings, config):
    """Return the name of the tokenizer class that AutoTokenizer would load.

    Args:
        settings: `Fields` of tokenizer_config.json.
        config: `Fields` of config.json. Older folders name the class there.

    Raises:
        WeightsError: the class is code in the folder, or is not in `CLASSES`.
    """
    if "auto_map" in settings:
        raise WeightsError(
            settings.path,
            "the tokenizer needs code in the folder (auto_map), which "
            "bert_keras never runs",
            "If the tokenizer is plain WordPiece, keep only its vocab.txt",
        )
    # Like AutoTokenizer, prefer tokenizer_config.json to config.json.
    states = settings if "tokenizer_class" in settings else config
    default = "BertTokenizer" if "model_type" in config else "TokenizersBackend"
    return states.get("tokenizer_class", CLASSES, default)


def _check_files(settings, special, tokenizer, config):
    """Raise `WeightsError` if settings change the ids and cannot be applied.

    Args:
        settings: `Fields` of tokenizer_config.json.
        special: `Fields` of special_tokens_map.json.
        tokenizer: `Fields` of tokenizer.json.
        config: `Fields` of config.json.

    The `Fields` of a missing file are empty.
    """
    _check_keys(settings, SETTINGS_RULES)
    names = settings.get("model_input_names", TEXTS, ["token_type_ids"])
    has_segments = config.get("model_type") != "distilbert"
    if has_segments and "token_type_ids" not in names:
        warnings.warn(
            f"{settings.path}: model_input_names lacks token_type_ids. This "
            "package still gives segment id 1 to the second text of a pair.",
            stacklevel=2,
        )
    _check_keys(special, SETTINGS_RULES)
    if not tokenizer.values:
        return
    _check_keys(tokenizer, TOKENIZER_RULES)
    for name in ("model", "normalizer", "pre_tokenizer", "post_processor"):
        if name not in tokenizer:
            tokenizer.refuse(name, "the original tokenizer's value", "none")
    for name in ("normalizer", "pre_tokenizer"):
        tokenizer.object(name).get("type", TEXT)
    _check_post_processor(tokenizer)


def _check_ids(tokenizer, pieces):
    """Raise `WeightsError` if tokenizer.json has other ids than vocab.txt.

    In `pieces`, an empty or repeated line of vocab.txt is the piece "[lineN]".
    """
    ids = tokenizer.object("model").object("vocab").values
    indices = {piece: index for index, piece in enumerate(pieces)}

    def is_same(piece, value):
        # vocab.txt is read without blanks, so such a piece has no name there.
        if piece in indices or (piece and piece == piece.strip()):
            return indices.get(piece) == value
        return _is_line(pieces, value)

    others = [
        (piece, value, indices.get(piece, "none"))
        for piece, value in ids.items()
        if not is_same(piece, value)
    ]
    others += [
        (piece, "none", index)
        for piece, index in indices.items()
        if piece not in ids and not piece.startswith("[line")
    ]
    if others:
        piece, found, expected = others[0]
        raise WeightsError(
            tokenizer.path,
            f"{len(others)} of {len(ids)} ids differ from vocab.txt",
            "Remove the file that is of another model: this file or vocab.txt",
            expected=f"for {piece!r} the id {expected}",
            found=found,
        )


def _is_line(pieces, index):
    is_in_range = type(index) is int and 0 <= index < len(pieces)
    return is_in_range and pieces[index] == f"[line{index + 1}]"


def _check_keys(fields, rules):
    for name in filter(rules.__contains__, fields.values):
        value, allowed = fields.values[name], rules[name]
        if isinstance(allowed, dict):
            _check_keys(fields.object(name, {}), allowed)
            continue
        found = value
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            found = value["content"]  # of a token
        if not any(type(found) is type(v) and found == v for v in allowed):
            expected = " or ".join(json.dumps(one) for one in allowed)
            fields.refuse(name, expected, value)


def _check_post_processor(tokenizer):
    """Raise `WeightsError` if the post-processor builds other rows than BERT.

    BERT builds [CLS] A [SEP] from a text and [CLS] A [SEP] B [SEP] from a pair.
    """
    ids = tokenizer.object("model").object("vocab").values
    part = tokenizer.object("post_processor")
    template = _make_template(ids)
    tokens = part.get("special_tokens", default={})
    is_template = isinstance(tokens, dict) and part.values == {
        **template,
        "special_tokens": {**tokens, **template["special_tokens"]},
    }
    pair = {
        name: [f"[{name.upper()}]", ids.get(f"[{name.upper()}]")]
        for name in ("cls", "sep")
    }
    if not is_template and part.values != {"type": "BertProcessing", **pair}:
        tokenizer.refuse(
            "post_processor",
            "[CLS] A [SEP] and [CLS] A [SEP] B [SEP], with B in segment 1",
            part.values,
        )


def _check_extra_tokens(added, special, settings, tokenizer, pieces, lowercase):
    """Raise `WeightsError` if added tokens would change the ids.

    transformers never splits an added token in a text. The original BERT splits
    it like any text, such as "[unused0]" at the brackets, so the ids would
    differ.

    `added` is the `Fields` of added_tokens.json. For the next three arguments,
    see `_check_files`. `pieces` is the list of the vocabulary's tokens.
    `lowercase` is False if text keeps its case.
    """
    for token, index in _find_extra_tokens(added, special, settings, tokenizer):
        content = token.get("content", TEXT)
        if content not in SPECIAL_TOKENS:
            raise WeightsError(
                token.path,
                "the tokenizer has added tokens, which are not supported",
                "If your texts contain no added token, keep only vocab.txt",
                expected="the special tokens only",
                found=content,
            )
        if index is not None and pieces.index(content) != index:
            token.refuse(f"id of {content}", pieces.index(content), index)
        for flag in ("single_word", *(["normalized"] if lowercase else [])):
            if token.get(flag, BOOLEAN, False):
                token.refuse(f"{flag} of {content}", "false", "true")


def _find_extra_tokens(added, special, settings, tokenizer):
    """Yield (`Fields`, id or None) for each added or special token."""

    def read(entries, fields, name):
        if not isinstance(entries, list):
            fields.refuse(name, "a list of tokens", entries)
        for entry in entries:
            if isinstance(entry, str):
                entry = {"content": entry}
            if not isinstance(entry, dict):
                fields.refuse(name, "tokens", entry)
            yield Fields(entry, fields.path), entry.get("id")

    for token, index in added.values.items():
        yield Fields({"content": token}, added.path), index
    yield from read(
        tokenizer.get("added_tokens", default=[]), tokenizer, "added_tokens"
    )
    name = "added_tokens_decoder"
    for index, entry in settings.object(name, {}).values.items():
        for token, _ in read([entry], settings, name):
            yield token, int(index) if index.isdecimal() else index
    for fields in (special, settings):
        for name, value in fields.values.items():
            if name in MORE_TOKENS and value is not None:
                is_dict = isinstance(value, dict)
                values = list(value.values()) if is_dict else value
                yield from read(values, fields, name)
            elif name.endswith("_token") and isinstance(value, str | dict):
                yield from read([value], fields, name)


def write_tokenizer(folder, preprocessor):
    """Write tokenizer_config.json, tokenizer.json and vocab.txt."""
    tokenizer = preprocessor.tokenizer
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "split_special_tokens": not tokenizer.keep_special_tokens,
        "model_max_length": preprocessor.sequence_length,
        # Our reader ignores a `model_max_length` that equals the model's
        # limit, so the file states the length a second time.
        "sequence_length": preprocessor.sequence_length,
        **TOKENS,
    }
    if preprocessor.prompts:
        settings["prompts"] = dict(preprocessor.prompts)
        settings["default_prompt_name"] = preprocessor.prompt
        settings["include_prompt"] = preprocessor.include_prompt
    if preprocessor.text_keys:
        settings["text_keys"] = list(preprocessor.text_keys)
        settings["label_key"] = preprocessor.label_key
    json_files.write_json(settings, os.path.join(folder, SETTINGS))
    json_files.write_json(
        _make_tokenizer_json(tokenizer), os.path.join(folder, TOKENIZER)
    )
    write_vocabulary(tokenizer.vocabulary, os.path.join(folder, VOCABULARY))


def _make_tokenizer_json(tokenizer):
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    plain = dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[token], "content": token, **plain, "special": True}
            for token in SPECIAL_TOKENS
            if token in ids
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": tokenizer.strip_accents,
            "lowercase": tokenizer.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _make_template(ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": tokenizer.max_word_length,
            "vocab": ids,
        },
    }


def _make_template(ids):
    """Return a post-processor for [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    single, more = (
        [{kind: {"id": id, "type_id": segment}} for kind, id, segment in parts]
        for parts in (
            [
                ("SpecialToken", "[CLS]", 0),
                ("Sequence", "A", 0),
                ("SpecialToken", "[SEP]", 0),
            ],
            [("Sequence", "B", 1), ("SpecialToken", "[SEP]", 1)],
        )
    )
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *more],
        "special_tokens": {
            token: {"id": token, "ids": [ids.get(token)], "tokens": [token]}
            for token in ("[CLS]", "[SEP]")
        },
    }
