"""Read, write and check vocabulary files, with one token on each line."""

import codecs
import contextlib
import os
import re
import string

from bert_keras.errors import InputError
from bert_keras.files import (
    atomic_output,
    flush,
    is_file,
    list_folder,
    read_bytes,
    remove,
)
from bert_keras.json_files import (
    read_json,
    write_json,
)
from bert_keras.text.wordpiece import (
    MAX_TOKEN_BYTES,
    SPECIAL_TOKENS,
    utf8_length,
)

# The largest published vocabulary, LaBSE's, has 501,153 tokens in 5 MB.
MAX_TOKENS, MAX_BYTES = 1_000_000, 16 * 1024 * 1024
# File with the tokenizer's settings, in the vocabulary's folder. Its name and
# keys are the same as in Hugging Face.
SETTINGS = "tokenizer_config.json"


def read_vocabulary(path):
    """Read the tokens of a `vocab.txt`, in the order of their ids.

    Raises:
        InputError: the file cannot be read or is too large, a line is not
            UTF-8, or `check_vocabulary` refuses the tokens.
    """
    return check_vocabulary(read_pieces(path), str(path))


def read_pieces(path):
    """Read the lines of a vocabulary file, stripped; do not check the tokens.

    Raises:
        InputError: the file cannot be read or is too large, or a line is not
            UTF-8.
    """
    try:
        data = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise InputError(
            f"The vocabulary {path} cannot be read ({error.strerror}). "
            "Name a text file with one token on each line."
        ) from None
    count = data.count(b"\n")
    if count > MAX_TOKENS:
        raise InputError(
            f"{path} has {count:,} lines; expected a vocabulary of at most "
            f"{MAX_TOKENS:,} tokens. Pass the path of a vocabulary file."
        )
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [_decode(line, number, path) for number, line in enumerate(lines, 1)]


def _decode(line, number, path):
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Line {number} of {path} is not UTF-8 (byte {error.start} is "
            f"0x{line[error.start]:02x}). Save the file as UTF-8."
        ) from None
    return text.strip() or text.strip(string.whitespace)


def write_vocabulary(tokens, path):
    """Check the tokens; write them atomically to `path`, one on each line."""
    tokens = check_vocabulary(tokens)
    with atomic_output(path) as partial:
        _write_lines(tokens, partial)


def _write_lines(tokens, path):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{token}\n" for token in tokens)


def write_with_settings(tokens, path, lowercase, strip_accents):
    """Write a vocabulary and its tokenizer settings.

    The settings file also gets `tokenizer_class` and
    `tokenize_chinese_chars`; its other keys stay. A file with the same values
    of the two arguments is not written again, because the manifest of a model
    folder has the file's hash.

    If the process ends early, an old vocabulary never stays beside new
    settings: either nothing has changed, or there is no vocabulary.
    """
    tokens = check_vocabulary(tokens)
    stated = {"lowercase": lowercase, "strip_accents": strip_accents}
    if _read_settings(path) == stated:
        write_vocabulary(tokens, path)
        return
    settings_path = _settings_path(path)
    settings = read_json(settings_path) if is_file(settings_path) else {}
    settings |= {
        "do_lower_case": lowercase,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    with (
        atomic_output(path) as partial,
        atomic_output(settings_path) as partial_settings,
    ):
        _write_lines(tokens, partial)
        write_json(settings, partial_settings)
        flush(partial)  # fails here, and not later, if the disk is full
        flush(partial_settings)
        remove(path)


def resolve_settings(path, lowercase=None, strip_accents=None):
    """Return `lowercase` and `strip_accents` for a vocabulary file.

    Args:
        path: the vocabulary file; its settings file is in the same folder.
        lowercase: argument of the caller; None if not set.
        strip_accents: argument of the caller; None if not set.

    Returns:
        Two booleans; None for a setting that is set nowhere.

    Raises:
        InputError: an argument contradicts the settings file, or the settings
            file is invalid.
    """
    arguments = {"lowercase": lowercase, "strip_accents": strip_accents}
    saved = _read_settings(path)
    for name, value in arguments.items():
        found = saved.get(name)
        if None not in (value, found) and value != found:
            raise InputError(
                f"`{name}={value}` contradicts {_settings_path(path)}, which "
                f"says {found}. Leave this setting out, or use a vocabulary "
                "in another folder."
            )
    return tuple(
        saved.get(name) if value is None else value
        for name, value in arguments.items()
    )


def shares_settings(path) -> bool:
    """Return True if another vocabulary may use the settings next to `path`.

    The result is True if another .txt file in the folder is a vocabulary, or if
    no file exists at `path`.
    """
    if not is_file(path):
        return True
    folder, name = os.path.split(os.fspath(path))
    for other in list_folder(folder or "."):
        if other != name and other.endswith(".txt"):
            with contextlib.suppress(InputError):
                read_vocabulary(os.path.join(folder, other))
                return True
    return False


def _read_settings(path):
    """Return a vocabulary's settings as a dict; {} without a settings file."""
    path = _settings_path(path)
    if not is_file(path):
        return {}
    try:
        settings = read_json(path)
    except ValueError as error:
        raise InputError(
            f"{path} cannot be read. Correct or remove the file. Error: {error}"
        ) from None
    if not isinstance(settings, dict):
        raise InputError(
            f"{path} has a {type(settings).__name__}; expected a JSON object. "
            "Correct or remove the file."
        )
    names = {"lowercase": "do_lower_case", "strip_accents": "strip_accents"}
    found = {name: settings.get(key) for name, key in names.items()}
    for name, value in found.items():
        if value not in (True, False, None):
            raise InputError(
                f"{path}: {names[name]} is {value!r}; expected true or false, "
                "or null for the default."
            )
    if found["strip_accents"] is None:  # by default the same as `lowercase`
        found["strip_accents"] = found["lowercase"]
    return found


def _settings_path(path):
    return os.path.join(os.path.dirname(os.fspath(path)), SETTINGS)


def check_vocabulary(vocabulary, source="the vocabulary"):
    """Check the tokens of a vocabulary; return them as a list.

    Args:
        vocabulary: iterable of tokens, in the order of their ids.
        source: name of the vocabulary in errors.

    Raises:
        InputError: `vocabulary` is a string or a path; a token is invalid
            or a duplicate; a special token is missing; or there are only
            special tokens.
    """
    if isinstance(vocabulary, str | os.PathLike):
        raise InputError(
            f"`vocabulary` is {vocabulary!r}; expected a list of tokens. "
            "bert_keras.text.vocabulary.read_vocabulary reads a file."
        )
    lines = {}
    for number, token in enumerate(vocabulary, 1):
        fault = _find_fault(token)
        if fault:
            raise InputError(
                f"Line {number} of {source} is {_shorten(token)}; expected "
                f"{fault}. {_advice(number)}"
            )
        if token in lines:
            raise InputError(
                f"Line {number} of {source} repeats {token!r} of line "
                f"{lines[token]}; each token has one id. {_advice(number)}"
            )
        lines[token] = number
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise InputError(
            f"No line of {source} is {' or '.join(missing)}; BERT needs "
            f"{', '.join(SPECIAL_TOKENS)}. Add the missing tokens."
        )
    if not any(map(_is_text, lines)):
        raise InputError(
            f"{source} has special tokens only; all text would be [UNK]. Name "
            "the vocabulary of the model, or learn one from text."
        )
    return list(lines)


def _advice(number):
    return (
        f"Replace the token by [line{number}], which matches no text. Do not "
        "remove the line, because all later ids would change."
    )


def _is_text(token):
    """Return True except for "##" and tokens like "[CLS]" and "[unused0]"."""
    return token != "##" and not (len(token) > 1 and token.startswith("["))


# In English vocabularies, nearly all tokens are printable ASCII. They need only
# this check.
_USUAL = re.compile(f"[!-~]{{1,{MAX_TOKEN_BYTES}}}")


def _find_fault(token):
    """Return the rule that a token breaks, as a phrase; None if it is valid."""
    if not isinstance(token, str):
        return "a string"
    if _USUAL.fullmatch(token):
        return None
    if utf8_length(token) > MAX_TOKEN_BYTES:
        return f"a token of at most {MAX_TOKEN_BYTES} bytes"
    if not token or re.search("[\0\ud800-\udfff]", token):
        return "one or more characters, without NUL or half a surrogate pair"
    # A token may be one non-ASCII space: Chinese BERT has the token U+2028.
    if re.search(r"\s", token) and (token.isascii() or len(token) > 1):
        return "a token without white space"
    return None


def _shorten(token):
    text = repr(token)
    return text if len(text) <= 60 else f"{text[:60]}..."


def cased_words(pieces):
    """Return the alphabetic tokens that can begin with a capital letter.

    Return [] if they are under half of all alphabetic tokens. A few Latin
    tokens in a Hebrew or Chinese vocabulary do not show whether the vocabulary
    is lower-cased. `title` is used, not `upper`, because Georgian has
    upper-case letters, but no Georgian word begins with one.
    """
    words = [p for p in pieces if p.removeprefix("##").isalpha()]
    cased = [word for word in words if word.title() != word.lower()]
    return cased if 2 * len(cased) >= len(words) else []
