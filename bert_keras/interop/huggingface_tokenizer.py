"""The tokenizer of a Hugging Face folder, read and written.

The pieces stand in `vocab.txt`, or inside `tokenizer.json`, which is all
that transformers 5 writes.
"""

import os

from bert_keras import files
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import (
    TextSide,
    checked_pieces,
    read_pieces,
    write_pieces,
)
from bert_keras.text.wordpiece import SPECIAL_TOKENS

VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer.json"
SETTINGS = "tokenizer_config.json"
WRITTEN_TEXT = (VOCABULARY, TOKENIZER, SETTINGS)
# The word length of transformers and its tokenizers; the original has 200.
MAX_WORD_LENGTH = 100
PLAIN = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
# Of BertJapaneseTokenizer: how it is the original's.
JAPANESE = {
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
# The parts of tokenizer.json that make the original's ids.
PARTS = {
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
    "model": "WordPiece",
}


def text_reader(folder, config, positions):
    """What reads the text side, or None where there is no vocabulary.

    Args:
        folder: with vocab.txt or tokenizer.json.
        config: the `Fields` of config.json.
        positions: of the model; a length stated beyond it is no wish.
    """
    paths = [os.path.join(folder, n) for n in (VOCABULARY, TOKENIZER)]
    if not any(map(os.path.exists, paths)):
        return None
    return lambda: _read_text(folder, config, positions, *paths)


def _read_text(folder, config, positions, plain, fast):
    settings = _optional(os.path.join(folder, SETTINGS))
    _check_settings(settings, config)
    made = _optional(fast)
    _check_made(made)
    pieces = read_pieces(plain) if os.path.exists(plain) else _read_ids(made)
    _check_added(_added(folder, settings, made))
    return TextSide(
        pieces,
        _tokenizer(settings, made),
        _cases(settings, made),
        _length(settings, positions),
    )


def _tokenizer(settings, made):
    strip = settings.raw("strip_accents")
    if strip is None:
        strip = made.object("normalizer", {}).raw("strip_accents")
    if strip not in (None, True, False):
        settings.refuse("strip_accents", "true, false or null", strip)
    return {
        "strip_accents": strip,
        "max_word_length": made.object("model", {}).integer(
            "max_input_chars_per_word", MAX_WORD_LENGTH
        ),
        # transformers takes "[MASK]" in a text for the token.
        "keep_special_tokens": not settings.boolean(
            "split_special_tokens", False
        ),
    }


def _cases(settings, made):
    """Who in the folder says whether the text is lower-cased, and what."""
    cases = {}
    if "do_lower_case" in settings:
        cases[settings.path] = settings.boolean("do_lower_case")
    normal = made.object("normalizer", {})
    if "lowercase" in normal:
        cases[made.path] = normal.boolean("lowercase")
    return cases


def _length(settings, positions):
    """The tokens that rows are cut to, if that is stated; what fits in is
    stated by every folder, and no wish."""
    if "sequence_length" in settings:  # this package wrote the folder
        return settings.integer("sequence_length")
    length = settings.raw("model_max_length")
    if type(length) in (int, float) and length >= positions:
        return None
    return None if length is None else settings.integer("model_max_length")


def _read_ids(made):
    """The pieces of tokenizer.json, in the order of their ids."""
    ids = made.object("model").object("vocab").values
    _check_ids(ids, made.path)
    return checked_pieces(sorted(ids, key=ids.get), made.path)


def _check_ids(ids, path):
    whole = all(type(value) is int for value in ids.values())
    if not whole or set(ids.values()) != set(range(len(ids))):
        raise WeightsError(
            path,
            "the ids of the vocabulary have gaps or are there twice",
            "Put the vocab.txt that the model was trained with next to it",
            expected=f"each of 0 to {len(ids) - 1} once",
            found="others",
        )


def _check_settings(settings, config):
    """Refuses a tokenizer that is not the original's."""
    if "auto_map" in settings:
        raise WeightsError(
            settings.path,
            "the folder asks to run code that came with it (auto_map)",
            "Take its vocab.txt alone, if it is plain WordPiece",
        )
    # As AutoTokenizer does: older folders name it in config.json alone.
    says = settings if "tokenizer_class" in settings else config
    kind = says.text("tokenizer_class", PLAIN[0])
    if kind not in PLAIN:
        says.refuse("tokenizer_class", " or ".join(PLAIN), kind)
    for name, plain in JAPANESE.items():
        found = settings.text(name, plain)
        if found != plain:
            settings.refuse(name, plain, found)
    for name in ("tokenize_chinese_chars", "do_basic_tokenize"):
        if not settings.boolean(name, True):
            settings.refuse(name, "true, as in the original", "false")


def _check_made(made):
    """Refuses a tokenizer.json that makes other ids."""
    for name, kind in PARTS.items():
        part = made.object(name, {})
        found = part.text("type", kind if part.values else "none")
        if name in made.values and found != kind:
            made.refuse(name, kind, found)
    normalizer = made.object("normalizer", {})
    for name in ("clean_text", "handle_chinese_chars"):
        if not normalizer.boolean(name, True):
            normalizer.refuse(name, "true, as in the original", "false")
    prefix = made.object("model", {}).text("continuing_subword_prefix", "##")
    if prefix != "##":
        made.refuse("continuing_subword_prefix", "##", prefix)


def _added(folder, settings, made):
    """Dict of token -> file, of those added to the tokenizer once made."""
    path = os.path.join(folder, "added_tokens.json")
    added = dict.fromkeys(_optional(path).values, path)
    entries = made.raw("added_tokens", [])
    if type(entries) is not list:
        made.refuse("added_tokens", "a list", entries)
    decoder = settings.object("added_tokens_decoder", {}).values.values()
    for fields, given in ((made, entries), (settings, decoder)):
        for entry in given:
            entry = Fields(entry if type(entry) is dict else {}, fields.path)
            added[entry.text("content")] = fields.path
    return added


def _check_added(added):
    """Refuses tokens that transformers would find in a text, and we not.

    It finds them whole wherever they stand, pieces of the vocabulary too,
    which we split at their brackets: "[e1]", "[unused0]".
    """
    unknown = sorted(added.keys() - set(SPECIAL_TOKENS))
    if unknown:
        raise WeightsError(
            added[unknown[0]],
            "tokens were added to the tokenizer, to be found whole in a text",
            "Take its vocab.txt alone, if your texts do without them",
            expected="the special tokens alone",
            found=", ".join(unknown[:5]),
        )


def _optional(path):
    return read_json(path) if os.path.exists(path) else Fields({}, path)


# Writing.


def write_tokenizer(folder, preprocessor):
    """Writes both tokenizer files of transformers and the vocabulary."""
    for name, value in (
        (SETTINGS, _tokenizer_config(preprocessor)),
        (TOKENIZER, _tokenizer_json(preprocessor.tokenizer)),
    ):
        files.write_json(value, os.path.join(folder, name))
    write_pieces(preprocessor, os.path.join(folder, VOCABULARY))


def _tokenizer_config(preprocessor):
    """The contents of tokenizer_config.json."""
    tokenizer = preprocessor.tokenizer
    names = [token.strip("[]").lower() for token in SPECIAL_TOKENS]
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "split_special_tokens": not tokenizer.keep_special_tokens,
        "model_max_length": preprocessor.sequence_length,
        # Where it is all that fits in, theirs would say nothing to us.
        "sequence_length": preprocessor.sequence_length,
        **{
            f"{name}_token": token
            for name, token in zip(names, SPECIAL_TOKENS, strict=True)
        },
    }


def _tokenizer_json(tokenizer):
    """The contents of tokenizer.json, as the `tokenizers` package has it."""
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(token, ids[token])
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
        "post_processor": _template(ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": tokenizer.max_word_length,
            "vocab": ids,
        },
    }


def _added_token(token, number):
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _template(ids):
    """[CLS] A [SEP] of segment 0, then B [SEP] of segment 1."""

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
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in ("[CLS]", "[SEP]")
        },
    }
