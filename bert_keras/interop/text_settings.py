"""The text side of weights: vocabulary, case, settings of the tokenizer.

Also the tokenizer files of a Hugging Face folder.
"""

import dataclasses
import math
import os

from bert_keras import json_files
from bert_keras.errors import InputError
from bert_keras.interop import tokenizer_checks
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError
from bert_keras.text import vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS


@dataclasses.dataclass
class TextSide:
    """The text side of a checkpoint.

    Attributes:
        pieces: the vocabulary, in the order of the ids.
        tokenizer: arguments of `WordPieceTokenizer`, without pieces and case.
        cases: dict of source -> True if it states lower-cased text.
        sequence_length: length of rows, or None.
        prompts: name -> text that embeddings put before a text.
        prompt: name of the one that is put there by default, or None.
        include_prompt: False if prompts are not pooled.
        settled: True if this package wrote `cases`, which the pieces then
            cannot contradict.
    """

    pieces: list
    tokenizer: dict = dataclasses.field(default_factory=dict)
    cases: dict = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    settled: bool = False
    prompts: dict = dataclasses.field(default_factory=dict)
    prompt: str | None = None
    include_prompt: bool = True


def text_reader(path, settings):
    """Return a function that reads the text side, or None without a vocabulary.

    Args:
        path: of the vocabulary file, which must be in its folder.
        settings: function that returns the other arguments of `TextSide`.
    """
    if not os.path.lexists(path):
        return None
    return lambda: TextSide(read_pieces(path), **settings())


def check_fits(model, preprocessor):
    """Raise `InputError` if a model has fewer ids or positions than needed."""
    # The class itself would need TensorFlow, which weights alone do not.
    parts = ("tokenizer", "sequence_length")
    if not all(hasattr(preprocessor, name) for name in parts):
        raise InputError(
            f"preprocessor is a {type(preprocessor).__name__}. Expected the "
            "BertPreprocessor of the model."
        )
    encoder = getattr(model, "encoder", model)
    made = preprocessor.tokenizer.vocabulary_size, preprocessor.sequence_length
    taken = encoder.vocabulary_size, encoder.max_sequence_length
    for what, needed, most in zip(
        ("pieces in the vocabulary", "tokens in a row"),
        made,
        taken,
        strict=True,
    ):
        if needed > most:
            raise InputError(
                f"The preprocessor makes {needed} {what}; {model.name} takes "
                f"at most {most}. Pass the model's preprocessor."
            )


def read_pieces(path):
    """Return the pieces of a published vocabulary file, one a line."""
    pieces = vocabulary.read_pieces(path, inside=os.path.dirname(path))
    return check_pieces(pieces, path)


def check_pieces(pieces, path):
    """Return the pieces, fit for a tokenizer, or raise an `InputError`.

    An empty line gets a name that no text has. Of a repeated piece the last id
    counts, as in the original.
    """
    last = {piece: index for index, piece in enumerate(pieces)}
    pieces = [
        piece if piece and last[piece] == index else f"[line{index + 1}]"
        for index, piece in enumerate(pieces)
    ]
    vocabulary.check_vocabulary(pieces, str(path))
    return pieces


def write_pieces(preprocessor, path):
    """Write the vocabulary file of the preprocessor's tokenizer."""
    vocabulary.write_vocabulary(preprocessor.tokenizer.vocabulary, path)


# The case of the text: from the folder, the caller, and the pieces.

# In a language with capitals a lower-cased vocabulary has none, and a cased one
# has thousands. The case of a vocabulary below these limits stays open.
FEW_PIECES = 1000
CASED_FRACTION = 0.01


def settle_case(source, cases, vocabulary, lowercase=None):
    """Return True for lower-cased text; raise on a contradiction.

    Args:
        source: the folder, for messages.
        cases: dict of source -> True for lower-case.
        vocabulary: the pieces; their capitals count too.
        lowercase: the caller's choice. It settles an open question or a
            contradiction of the folder, but must not contradict the folder.
    """
    shown = find_case(vocabulary)
    answers = dict(cases)
    if shown is not None:
        answers["its vocabulary"] = shown
    said = set(answers.values())
    if lowercase is None and len(said) < 2:
        return said.pop() if said else True
    if lowercase is None or said == {not lowercase}:
        _refuse(source, answers, lowercase)
    return lowercase


def find_case(pieces):
    """Return True for pieces of lower-cased text, False for cased, or None."""
    words = vocabulary.cased_words(pieces)
    capitals = sum(piece != piece.lower() for piece in words)
    if len(words) < FEW_PIECES:
        return None
    if capitals == 0:
        return True
    return False if capitals > CASED_FRACTION * len(words) else None


def _refuse(source, answers, lowercase):
    speak = {True: "lower-cased", False: "cased"}
    found = " and ".join(
        f"{speak[value]} by {who}" for who, value in sorted(answers.items())
    )
    if lowercase is None:
        expected = "one answer"
        fix = (
            "Pass lowercase=True or =False, or convert it once with bert-keras "
            "convert_checkpoint --lowercase or "
            "--nolowercase"
        )
    else:
        expected = f"lowercase={not lowercase}"
        fix = f"Leave lowercase= out, or pass {expected}"
    raise WeightsError(
        source,
        "the statements on the case of the text contradict each other",
        fix,
        expected=expected,
        found=found if lowercase is None else f"{found}; lowercase={lowercase}",
    )


# The tokenizer of a Hugging Face folder. The pieces stand in `vocab.txt`, or
# inside `tokenizer.json`, which is all that transformers 5 writes.

VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer.json"
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
WRITTEN_TEXT = (VOCABULARY, TOKENIZER, SETTINGS)
READ = (*WRITTEN_TEXT, SPECIAL, ADDED)
# The word length of transformers and its tokenizers; the original has 200.
MAX_WORD_LENGTH = 100


def huggingface_text(folder, config, positions):
    """Return a function that reads the text side, or None without a vocabulary.

    `config` is the `Fields` of config.json. A stated length of `positions` or
    more is ignored.
    """
    paths = [os.path.join(folder, n) for n in (VOCABULARY, TOKENIZER)]
    if not any(map(os.path.exists, paths)):
        return None
    return lambda: _read_huggingface(folder, config, positions, *paths)


def tokenizer_folder_text(folder):
    """Return the `TextSide` of a folder with tokenizer files and no model."""
    if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
        return None
    if os.path.exists(os.path.join(folder, "config.json")):
        return None
    read = huggingface_text(folder, Fields({}, folder), math.inf)
    return None if read is None else read()


def _read_huggingface(folder, config, positions, plain, fast):
    added, special, settings, made = (
        read_json(os.path.join(folder, name), optional=True)
        for name in (ADDED, SPECIAL, SETTINGS, TOKENIZER)
    )
    tokenizer_checks.check_files(settings, special, made, config)
    pieces = read_pieces(plain) if os.path.exists(plain) else _read_ids(made)
    if made.values and os.path.exists(plain):
        tokenizer_checks.check_ids(made, pieces)
    cases = _cases(settings, made)
    tokenizer_checks.check_extra_tokens(
        *(added, special, settings, made, pieces),
        lowercase=set(cases.values()) != {False},
    )
    return TextSide(
        pieces,
        _made_tokenizer(settings, made, cases),
        cases,
        _length(settings, positions),
        **read_prompts(settings),
    )


def read_prompts(fields):
    """Return the prompts in a file of settings, as arguments of `TextSide`."""
    prompts = fields.object("prompts", {}).values
    if not all(isinstance(text, str) for text in prompts.values()):
        fields.refuse("prompts", "an object of texts", prompts)
    name = "default_prompt_name"
    prompt = fields.text(name) if name in fields else None
    if prompt is not None and prompt not in prompts:
        fields.refuse(name, f"one of {', '.join(prompts) or 'none'}", prompt)
    return {
        "prompts": prompts,
        "prompt": prompt,
        "include_prompt": fields.boolean("include_prompt", True),
    }


def _made_tokenizer(settings, made, cases):
    return {
        "strip_accents": _strip_accents(settings, made, cases),
        "max_word_length": made.object("model", {}).integer(
            "max_input_chars_per_word", MAX_WORD_LENGTH
        ),
        # transformers takes "[MASK]" in a text for the token.
        "keep_special_tokens": not settings.boolean(
            "split_special_tokens", False
        ),
    }


def _strip_accents(settings, made, cases):
    """Return the stated value, None if it follows from the case."""
    name, normalizer = "strip_accents", made.object("normalizer", {})
    stated = [
        fields.boolean_or_none(name)
        for fields in (settings, normalizer)
        if name in fields.values
    ]
    # Without lower-casing, None is False.
    if len({*stated}) > 1 and set(cases.values()) != {False}:
        settings.refuse(name, f"{stated[1]} as in {TOKENIZER}", stated[0])
    return next((value for value in stated if value is not None), None)


def _cases(settings, made):
    """Return what files of the folder state about the case, by path."""
    cases = {}
    if "do_lower_case" in settings:
        cases[settings.path] = settings.boolean("do_lower_case")
    normal = made.object("normalizer", {})
    if "lowercase" in normal:
        cases[made.path] = normal.boolean("lowercase")
    return cases


def _length(settings, positions):
    """Return the stated length of rows; None if it is the model's longest."""
    if "sequence_length" in settings:  # this package wrote the folder
        return settings.integer("sequence_length")
    length = settings.raw("model_max_length")
    if type(length) in (int, float) and length >= positions:
        return None
    return None if length is None else settings.integer("model_max_length")


def _read_ids(made):
    """Return the pieces of tokenizer.json, in the order of their ids."""
    ids, path = made.object("model").object("vocab").values, made.path
    whole = all(type(value) is int for value in ids.values())
    if not whole or set(ids.values()) != set(range(len(ids))):
        raise WeightsError(
            path,
            "the ids of the vocabulary have gaps or repeat",
            "Put the vocab.txt that the model was trained with next to it",
            expected=f"each of 0 to {len(ids) - 1} once",
            found="others",
        )
    return check_pieces(sorted(ids, key=ids.get), path)


def write_huggingface_tokenizer(folder, preprocessor):
    """Write both tokenizer files of transformers and the vocabulary."""
    tokenizer = preprocessor.tokenizer
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "split_special_tokens": not tokenizer.keep_special_tokens,
        "model_max_length": preprocessor.sequence_length,
        # `model_max_length` is ignored if it is the model's longest.
        "sequence_length": preprocessor.sequence_length,
        **tokenizer_checks.TOKENS,
    }
    if preprocessor.prompts:
        settings["prompts"] = dict(preprocessor.prompts)
        settings["default_prompt_name"] = preprocessor.prompt
        settings["include_prompt"] = preprocessor.include_prompt
    json_files.write_json(settings, os.path.join(folder, SETTINGS))
    made = _tokenizer_json(tokenizer)
    json_files.write_json(made, os.path.join(folder, TOKENIZER))
    write_pieces(preprocessor, os.path.join(folder, VOCABULARY))


def _tokenizer_json(tokenizer):
    """Return tokenizer.json in the format of the `tokenizers` package."""
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
        "post_processor": tokenizer_checks.make_template(ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": tokenizer.max_word_length,
            "vocab": ids,
        },
    }
