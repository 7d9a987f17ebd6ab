"""Checks that a Hugging Face tokenizer makes the ids of the original.

Each setting of its files is known to be harmless, is one of the values that
are computed here, or is refused. A setting that nobody knows is warned about.
"""

import json
import warnings

from bert_keras.interop.tensor_files import Fields
from bert_keras.interop.tensors import WeightsError
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN

CLASSES = (
    *("BertTokenizer", "BertTokenizerFast"),
    *("DistilBertTokenizer", "DistilBertTokenizerFast"),
    *("PreTrainedTokenizerFast", "TokenizersBackend"),
)
ANY = object()  # of settings that change no ids, or are read elsewhere
TOKENS = {f"{t.strip('[]').lower()}_token": t for t in SPECIAL_TOKENS}
# Lists or dicts of tokens, in `tokenizer_config.json` or
# `special_tokens_map.json`.
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
RIGHT = ("right", "Right", None)

# tokenizer_config.json: name -> the values that make the original's ids.
SETTINGS = {
    **{name: (token,) for name, token in TOKENS.items()},
    **dict.fromkeys(MORE_TOKENS, ANY),
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
    "tokenizer_class": (*CLASSES, "BertJapaneseTokenizer", None),
    "truncation_side": RIGHT,
    "wordpieces_prefix": ("##", None),
    # Of BertJapaneseTokenizer: how it is the original's.
    "subword_tokenizer_type": ("wordpiece", None),
    "word_tokenizer_type": ("basic", None),
    **dict.fromkeys(
        (
            # Read by `text_settings.py`.
            *("added_tokens_decoder", "do_lower_case", "model_max_length"),
            *("default_prompt_name", "include_prompt", "prompts"),
            *("sequence_length", "split_special_tokens", "strip_accents"),
            # Of ids back to text, of other tokenizers, or the caller's.
            *("add_prefix_space", "backend", "chat_template"),
            *("clean_up_tokenization_spaces", "errors", "from_slow"),
            *("full_tokenizer_file", "init_inputs", "is_local"),
            *("jumanpp_kwargs", "local_files_only", "max_len", "max_length"),
            *("mecab_kwargs", "model_input_names", "model_type"),
            *("name_or_path", "pad_to_multiple_of", "padding"),
            *("processor_class", "return_tensors", "special_tokens_map_file"),
            *("stride", "sudachi_kwargs", "tokenizer_file", "trim_offsets"),
            *("truncation", "truncation_strategy", "use_fast", "vocab_file"),
        ),
        ANY,
    ),
}
# tokenizer.json. Truncation and padding are off unless the caller asks.
TOKENIZER = {
    "added_tokens": ANY,
    "decoder": ANY,  # of ids back to text
    "version": ANY,
    "model": {
        "continuing_subword_prefix": ("##", None),
        "max_input_chars_per_word": ANY,
        "type": ("WordPiece", None),  # early files lack it
        "unk_token": (UNKNOWN, None),
        "vocab": ANY,
    },
    "normalizer": {
        "clean_text": (True, None),
        "handle_chinese_chars": (True, None),
        "lowercase": ANY,
        "strip_accents": ANY,
        "type": ("BertNormalizer",),
    },
    "padding": {
        "direction": RIGHT,
        "pad_id": ANY,
        "pad_to_multiple_of": ANY,
        "pad_token": ("[PAD]", None),
        "pad_type_id": (0, None),
        "strategy": ANY,
    },
    "post_processor": ANY,  # see `_check_frame`
    "pre_tokenizer": {"type": ("BertPreTokenizer",)},
    "truncation": {
        "direction": RIGHT,
        "max_length": ANY,
        "strategy": ANY,
        "stride": ANY,
    },
}


def check_files(settings, special, made, config):
    """Raise `InputError` if a tokenizer makes other ids than the original's.

    Args:
        settings: `Fields` of tokenizer_config.json.
        special: `Fields` of special_tokens_map.json.
        made: `Fields` of tokenizer.json; each is empty where there is none.
        config: `Fields` of config.json, where older folders name the class.
    """
    if "auto_map" in settings:
        raise WeightsError(
            settings.path,
            "the folder asks to run code that came with it (auto_map)",
            "Keep its vocab.txt only, if it is plain WordPiece",
        )
    # As AutoTokenizer does.
    states = settings if "tokenizer_class" in settings else config
    states.choice("tokenizer_class", CLASSES, CLASSES[0])
    _check_keys(settings, SETTINGS)
    names = settings.texts("model_input_names", ["token_type_ids"])
    has_segments = config.raw("model_type") != "distilbert"
    if has_segments and "token_type_ids" not in names:
        warnings.warn(
            f"{settings.path}: model_input_names lacks token_type_ids. Here "
            "the second text of a pair has segment id 1 all the same.",
            stacklevel=2,
        )
    _check_keys(special, {n: SETTINGS[n] for n in (*TOKENS, *MORE_TOKENS)})
    if not made.values:
        return
    _check_keys(made, TOKENIZER)
    for name in ("model", "normalizer", "pre_tokenizer", "post_processor"):
        if name not in made:
            made.refuse(name, "that of the original's tokenizer", "none")
    for name in ("normalizer", "pre_tokenizer"):
        made.object(name).text("type")
    _check_frame(made)


def check_ids(made, pieces):
    """Raise `WeightsError` if tokenizer.json has other ids than vocab.txt.

    Args:
        made: `Fields` of the file.
        pieces: of vocab.txt, in the order of their ids; a line that is empty
            or repeated has the name "[lineN]".
    """
    ids = made.object("model").object("vocab").values
    indices = {piece: index for index, piece in enumerate(pieces)}
    others = [
        (piece, value, indices.get(piece, "none"))
        for piece, value in ids.items()
        if indices.get(piece) != value and not _is_line(pieces, value)
    ]
    others += [
        (piece, "none", index)
        for piece, index in indices.items()
        if piece not in ids and not piece.startswith("[line")
    ]
    if others:
        piece, theirs, expected = others[0]
        raise WeightsError(
            made.path,
            f"its ids contradict vocab.txt ({len(others)} of {len(ids)})",
            "Remove the file that the model was not trained with",
            expected=f"the id {expected} of {piece!r}",
            found=theirs,
        )


def _is_line(pieces, index):
    is_there = type(index) is int and 0 <= index < len(pieces)
    return is_there and pieces[index] == f"[line{index + 1}]"


def _check_keys(fields, rules):
    """Refuse values that the rules do not list; warn of unknown settings."""
    unknown = []
    for name, value in fields.values.items():
        allowed = rules.get(name)
        if allowed is None and name.endswith("_token"):
            continue  # see `_find_extra_tokens`
        if allowed is None:
            unknown.append(name)
        elif isinstance(allowed, dict):
            _check_keys(fields.object(name, {}), allowed)
        elif allowed is not ANY and not _is_in(_content(value), allowed):
            expected = " or ".join(json.dumps(one) for one in allowed)
            fields.refuse(name, expected, value)
    if unknown:
        warnings.warn(
            f"{fields.path}: unknown settings, which are not applied: "
            f"{', '.join(sorted(unknown)[:5])}. Compare the ids with those of "
            "the tokenizer that wrote the file.",
            stacklevel=2,
        )


def _is_in(value, allowed):
    return any(type(value) is type(one) and value == one for one in allowed)


def _content(value):
    """Return the text of a token that is written with its flags."""
    is_token = isinstance(value, dict) and isinstance(value.get("content"), str)
    return value["content"] if is_token else value


def _check_frame(made):
    """Refuse a post-processor other than [CLS] A [SEP] and A [SEP] B [SEP]."""
    ids = made.object("model").object("vocab").values
    part = made.object("post_processor")
    template = make_template(ids)
    tokens = part.raw("special_tokens", {})
    is_template = isinstance(tokens, dict) and part.values == {
        **template,
        "special_tokens": {**tokens, **template["special_tokens"]},
    }
    pair = {
        name: [f"[{name.upper()}]", ids.get(f"[{name.upper()}]")]
        for name in ("cls", "sep")
    }
    if not is_template and part.values != {"type": "BertProcessing", **pair}:
        made.refuse(
            "post_processor",
            "[CLS] A [SEP] and [CLS] A [SEP] B [SEP], B of segment 1",
            part.values,
        )


def make_template(ids):
    """Return the post-processor: [CLS] A [SEP], and B [SEP] of segment 1.

    Args:
        ids: dict of piece -> id.
    """

    def special(token, segment):
        return {"SpecialToken": {"id": token, "type_id": segment}}

    def sequence(name, segment):
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special("[SEP]", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [ids.get(token)], "tokens": [token]}
            for token in ("[CLS]", "[SEP]")
        },
    }


# Added tokens, which a tokenizer does not split.


def check_extra_tokens(added, special, settings, made, pieces, lowercase):
    """Raise `WeightsError` for added tokens, which only transformers has.

    It finds them anywhere in a text, also pieces such as "[unused0]", which the
    original splits at the brackets.

    Args:
        added: `Fields` of added_tokens.json.
        special: `Fields` of special_tokens_map.json.
        settings: `Fields` of tokenizer_config.json.
        made: `Fields` of tokenizer.json.
        pieces: in the order of their ids.
        lowercase: False if the text certainly keeps its case.
    """
    for token, index in _find_extra_tokens(added, special, settings, made):
        content = token.text("content")
        if content not in SPECIAL_TOKENS:
            raise WeightsError(
                token.path,
                "the tokenizer has added tokens, which it does not split",
                "If your texts have none of them, keep its vocab.txt only",
                expected="the special tokens only",
                found=content,
            )
        if index is not None and pieces.index(content) != index:
            token.refuse(f"id of {content}", pieces.index(content), index)
        for flag in ("single_word", *(["normalized"] if lowercase else [])):
            if token.boolean(flag, False):
                token.refuse(f"{flag} of {content}", "false", "true")


def _find_extra_tokens(added, special, settings, made):
    """Yield the `Fields` and id, or None, of each token that files add."""

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
    yield from read(made.raw("added_tokens", []), made, "added_tokens")
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
