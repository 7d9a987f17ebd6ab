"""Flags, one-line messages and exit codes that all scripts share.

`--help` prints a script's module docstring and its flags. Exit code 0 means
success. Code 2 means a user error, a full disk or an I/O error. Code 3 means
that the training of a run failed; the same command does not repeat this run.
Code 75 means that Ctrl-C or SIGTERM stopped the script. The same command then
resumes from saved work, or starts again.
"""

import atexit
import contextlib
import errno
import functools
import gc
import itertools
import os
import platform
import re
import subprocess
import sys
import typing
import warnings
from logging import Formatter

from absl import app, flags, logging

from bert_keras import files, full_disk
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interrupts import Stopped
from official_tasks import loading, stopping
from official_tasks.overwriting import refuse_input_as_output

USER_ERROR = 2
FAILED_RUN = 3  # `exit_code` of an `InputError`
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")  # Keras policies
# Values of --dtype in training. The default is float32, not "auto", so that the
# dtype does not depend on the processor.
AUTO_DTYPES = ("auto", *DTYPES)
DTYPE_HELP = (
    "Keras dtype policy of the computation. auto means mixed_bfloat16 if the "
    "processor, GPU or TPU is fast in bfloat16, else float32."
)
LARGEST_SEED = 2**32 - 1  # the largest seed that Keras and NumPy accept
LARGEST_BATCH = 2**20  # rows; the LAMB paper uses up to 65,536
HELP = {"--help", "-h", "-help", "--helpshort"}
# Errors of the operating system that a wrong path causes.
PATH_ERRORS = {
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG),
}
# After this call, a flag that a function of this file defines belongs to the
# calling script. Otherwise the script's --help would not list the flag.
flags.disclaim_key_flags()
# Arguments of all calls of `applies_only`, `group_flags` and `show_flags`.
_limits = []
_groups: dict[str, list] = {}
_choices = []


def start(main, define_flags, arguments=()):
    """Run `main(FLAGS)` as the command of this process.

    `main` imports Keras and TensorFlow itself, so that `--help` prints at once.
    An `InputError` prints one line and exits with `USER_ERROR`.

    Args:
        main: function of absl's FLAGS and of the values of `arguments`. It
            returns the exit code; None means 0.
        define_flags: function that defines the script's flags.
        arguments: names of the positional arguments.
    """
    stopping.open_streams()
    stopping.install()
    # By default, Python's garbage collector searches TensorFlow's objects for
    # 2 s during the import and 2 s at the exit, and finds no garbage.
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)
    loading.set_log_level()
    if platform.machine() in ("x86_64", "AMD64"):
        # On processors that have only AVX2, TensorFlow turns oneDNN off,
        # although oneDNN is faster there too (docs/benchmarks.md).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.set_verbosity(logging.WARNING)
    define_flags()
    app.run(
        lambda words: _run(main, words[1:]),
        flags_parser=functools.partial(_parse, arguments),
    )


def run_module(words):
    """Run `python -m WORDS`; if the process fails, exit with its exit code.

    After Ctrl-C or SIGTERM, wait until the process has saved its work.
    """
    # Import this process's packages, not packages of the current folder.
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        code = process.wait()
    except Stopped:
        process.terminate()
        process.wait()
        raise
    if code:  # the process has printed the reason
        sys.exit(code)


def define_overwrite():
    """Define --overwrite, which allows a script to replace its --output."""
    flags.DEFINE_bool("overwrite", False, "Replace an existing --output.")


def define_seed(text):
    """Define --seed, 0 by default; `text` is its help."""
    flags.DEFINE_integer("seed", 0, text, 0, LARGEST_SEED)


def define_fields(options, texts, least=None):
    """Define a flag for each field of `options` that is a key of `texts`.

    Args:
        options: a dataclass, or an instance of a NamedTuple or dataclass. Its
            fields have the types and the defaults of the flags.
        texts: dict: name of a field -> help, or -> (help, choices).
        least: the smallest valid integer; None means no limit.
    """
    is_class = isinstance(options, type)
    hints = typing.get_type_hints(options if is_class else type(options))
    for name, text in texts.items():
        default, hint = getattr(options, name), hints[name]
        if isinstance(text, tuple):
            flags.DEFINE_enum(name, default, text[1], text[0])
        elif isinstance(default, tuple):
            flags.DEFINE_list(name, list(map(str, default)), text)
        else:
            kind, *_ = typing.get_args(hint) or [hint]  # `int | None` -> int
            define_flag(name, kind, default, text, least)


def define_flag(name, kind, default, text, least=None):
    """Define a flag of type `kind`: bool, float, str, or int >= `least`."""
    if kind is int:
        flags.DEFINE_integer(name, default, text, least)
        return
    define = {
        bool: flags.DEFINE_bool,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }[kind]
    define(name, default, text)


def define_text(text):
    """Define the flags of a tool that reads text; `text` is --input's help."""
    flags.DEFINE_string("input", None, text)
    flags.DEFINE_string(
        "text_field",
        "text",
        "Field of the text in JSONL, Parquet or data sets.",
    )
    flags.DEFINE_bool(
        "lowercase",
        None,
        "Lower-case the text. The default is the vocabulary's setting. If the "
        "vocabulary has none, text is lower-cased.",
    )
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Strip accents. The default is the vocabulary's setting. If the "
        "vocabulary has none, the default is the value of --lowercase. "
        "In train_vocabulary, the default depends on the text.",
    )


def require(expected, check, *names):
    """Refuse values of these flags for which `check` is False.

    The value None, of an unset flag, is not checked.

    Args:
        expected: the valid values in words, such as "a number above 0".
        check: function of a value; if a flag has a list, of each value in it.
        *names: names of flags.
    """

    def holds(value):
        values = value if isinstance(value, list) else [value]
        return all(check(one) for one in values if one is not None)

    for name in names:
        flags.register_validator(name, holds, f"expected {expected}")


def applies_only(to, acts, *names):
    """Let `check_limits` refuse these flags if they have no effect.

    A flag that has its default value is not refused.

    Args:
        to: words after "only applies" in the message, such as "with --packed".
        acts: function of absl's FLAGS that returns True if the flags have an
            effect.
        *names: names of flags.
    """
    _limits.append((to, acts, names))


def group_flags(title, *names):
    """Put these flags under a title in `--help`, after the untitled flags."""
    _groups.setdefault(title, []).extend(names)


def show_flags(choose, *names):
    """Hide these flags in `--help`, except those that `choose` selects.

    Args:
        choose: function of absl's FLAGS that returns a dict: name of a selected
            flag -> help.
        *names: names of the flags to select from.
    """
    _choices.append((choose, names))


def check_limits(values):
    """Raise InputError if flags would have no effect; see `applies_only`."""
    for to, acts, names in _limits:
        changed = [n for n in names if values[n].value != values[n].default]
        if changed and not acts(values):
            names = ", ".join(
                f"--no{n}" if values[n].value is False else f"--{n}"
                for n in changed
            )
            verb = "applies" if len(changed) == 1 else "apply"
            raise InputError(f"{names} only {verb} {to}. Leave {names} out.")


def to_numbers(words, example) -> tuple[float, ...]:
    """Return the numbers of a list flag.

    Args:
        words: value of the flag.
        example: a valid use of the flag, such as "--mask_mix=80,10,10".
    """
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise InputError(
            f"Expected numbers, as in {example}; got {','.join(words)}."
        ) from None


def load_tokenizer(values):
    """Return the `WordPieceTokenizer` that --vocabulary names.

    --vocabulary is a file, a model folder or the name of weights. --lowercase
    must not contradict the vocabulary's settings. --strip_accents overrides the
    setting of a folder or of weights, but must equal a setting stored next to a
    vocabulary file.
    """
    from bert_keras import WordPieceTokenizer

    source, names = values.vocabulary, ("lowercase", "strip_accents")
    options = {name: getattr(values, name) for name in names}
    if files.is_file(source) or source.endswith(".txt"):
        return WordPieceTokenizer(source, **options)
    options = {k: v for k, v in options.items() if v is not None}
    return WordPieceTokenizer.from_preset(
        source, keep_special_tokens=False, **options
    )


def prepare_output(values, is_folder=False, inputs=("input",)):
    """Refuse an --output that exists or is an input; make its parent folder.

    Call this function before any work. With --overwrite the output may exist,
    but a folder is not replaced by a file. Without --output, do nothing.

    Args:
        values: absl's FLAGS.
        is_folder: True if --output is a folder. It may exist if it is empty.
        inputs: names of input flags; the script may lack some of these flags.
    """
    path = values.output
    if not path:
        return
    if not is_folder:
        files.refuse_folder(path)
    if files.has_content(path) and not values.overwrite:
        raise InputError(
            f"--output={path} exists. Name another one, or add --overwrite to "
            "replace it."
        )
    sources = [getattr(values, name, None) for name in inputs]
    parts = [files.split_paths(source) for source in sources if source]
    refuse_input_as_output(path, *itertools.chain(sources, *parts))
    files.make_folder(os.path.dirname(files.absolute(path)))


def _parse(arguments, words):
    if HELP & set(words[1:]):
        # Print the help even if another flag is invalid.
        with contextlib.suppress(flags.Error):
            flags.FLAGS([word for word in words if word not in HELP])
        try:
            _print_help()
            sys.stdout.flush()
        except InputError as error:
            sys.exit(print_error(str(error)))
        except OSError as error:
            sys.exit(refuse_output(error))
        sys.exit(0)
    try:
        rest = flags.FLAGS(words)
        if unexpected := rest[1 + len(arguments) :]:
            raise flags.Error(f"Unexpected argument: {' '.join(unexpected)}")
        if len(rest) <= len(arguments):
            raise flags.Error(f"Expected {' '.join(arguments)}")
        _expand_home()
        _check_encoding(words)
        return rest
    except flags.Error as error:
        if isinstance(error, flags.UnrecognizedFlagError):
            _check_choices()
        text = re.sub(
            r"^flag --\w+=None: Flag (--\w+) must have a value.*",
            r"\1 is missing",
            str(error),
        )
        sys.exit(print_error(f"{text} (see --help)"))


def _check_choices():
    """Exit if a flag that decides which flags there are has a wrong value."""
    try:
        for choose, _ in _choices:
            choose(flags.FLAGS)
    except InputError as error:
        sys.exit(print_error(str(error)))


def list_flags():
    """Return a dict: title of a group -> its flags, which `--help` prints."""
    script = sys.argv[0]
    shown = {f.name: f for f in flags.FLAGS.get_key_flags_for_module(script)}
    for choose, names in _choices:
        texts = choose(flags.FLAGS)
        for name in names:
            if name in texts:
                shown[name].help = texts[name]
            else:
                shown.pop(name, None)
    grouped = {name for names in _groups.values() for name in names}
    rest = [name for name in shown if name not in grouped]
    sections = {f"flags:\n\n{script}": rest, **_groups}
    return {
        title: {name: shown[name] for name in names}
        for title, names in sections.items()
    }


def _print_help():
    text = [sys.modules["__main__"].__doc__]
    for title, named in list_flags().items():
        section = flags.FlagValues()
        for name, flag in named.items():
            section[name] = flag
        flag_list = section.get_help("  ", include_special_flags=False)
        text.append(f"{title}:\n{flag_list}\n")
    print("\n".join(text), end="")


def _check_encoding(words):
    """Raise `flags.Error` for an argument that is not UTF-8.

    An argument may be a path, and TensorFlow opens only paths in UTF-8.
    """
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise flags.Error(
                f"{ascii(word)} is not UTF-8. Rename the file or the folder, "
                "or set a UTF-8 locale"
            ) from None


def _expand_home():
    """Expand "~/" in flags: shells do not expand it in `--output=~/runs`."""

    def expand(value):
        is_path = isinstance(value, str) and value.startswith("~/")
        return os.path.expanduser(value) if is_path else value

    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if isinstance(flag.value, list):
            flag.value = list(map(expand, flag.value))
        else:
            flag.value = expand(flag.value)


def _run(main, words):
    show_warning = warnings.showwarning

    def show(message, category, *where):
        if issubclass(category, UntrainedWarning):
            print_error(with_flags(f"note: {message}"))
        else:
            show_warning(message, category, *where)

    warnings.showwarning = show
    logging.get_absl_handler().setFormatter(Formatter("note: %(message)s"))
    warnings.simplefilter("always", UntrainedWarning)
    code = USER_ERROR
    try:
        check_limits(flags.FLAGS)
        with stopping.work():
            code = main(flags.FLAGS, *words)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the pipe's reader, such as `head`, has ended
        drop_output()
        return 0
    except Stopped as error:
        print_error(str(error))
        raise
    except InputError as error:
        print_error(with_flags(str(error)))
        return getattr(error, "exit_code", USER_ERROR)
    except Exception as error:
        number = getattr(error, "errno", None)
        if number in PATH_ERRORS and error.filename:
            return print_error(
                f"{error.filename} cannot be written or read: "
                f"{error.strerror}. Check the path and its permissions."
            )
        reason = full_disk.find_reason(error)
        if reason is None and number not in files.TEMPORARY:
            raise
        drop_output()
        if reason is None:
            return print_error(
                f"{error.filename or 'A file'} could not be read or written "
                f"({error.strerror}). Finished work is kept. Run the command "
                "again."
            )
        # Do not return exit code 75, because a job queue would then run the
        # command again, on the full disk.
        return print_error(
            f"{getattr(error, 'filename', None) or 'A file'} could not be "
            f"written ({reason}). Finished work is kept. Make room on the disk "
            "and run the command again."
        )
    finally:
        stopping.end_with(code or 0)


def with_flags(message):
    """Replace arguments in a message by flags: `verify=False` by --noverify.

    Messages have arguments in backquotes, unlike a user's own words, which may
    equal a flag's name. An argument that is no flag of the script stays.
    """

    def flag(found):
        name, _, value = found.groups()
        if name not in flags.FLAGS:
            return found[0]
        if value in ("True", "False"):
            return f"--{'' if value == 'True' else 'no'}{name}"
        return f"--{name}" if value is None else f"--{name}={value}"

    return re.sub(r"`([a-z0-9_]+)(?:=(['\"]?)([^`]*?)\2)?`", flag, message)


def print_error(message, program=None):
    """Print one line to standard error; return `USER_ERROR`."""
    text = f"{program or os.path.basename(sys.argv[0])}: {message}"
    with contextlib.suppress(OSError):  # the exit code still tells
        print(text, file=sys.stderr, flush=True)
    drop_output(sys.stderr)
    return USER_ERROR


def refuse_output(error):
    """Return the exit code after `print` failed; print the reason."""
    drop_output()
    if isinstance(error, BrokenPipeError):  # the reader, as `head`, has ended
        return 0
    return print_error(
        f"The standard output could not be written ({error.strerror})."
    )


def drop_output(stream=None):
    """Drop output that cannot be written; Python would retry this at exit.

    Args:
        stream: `sys.stdout`, the default, or `sys.stderr`.
    """
    stream = stream or sys.stdout
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
