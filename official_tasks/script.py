"""What every script shares: parsing flags, plain messages, exit codes.

A script's module docstring is its `--help`. Exit codes: 0 done, 2 the user's
mistake or a full disk, 75 stopped by Ctrl-C or SIGTERM: the same command goes
on from what is saved, or begins again.
"""

import contextlib
import errno
import functools
import glob
import io
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import typing
import warnings
from logging import Formatter

from absl import app, flags, logging

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interrupts import Stopped
from official_tasks import stopping

USER_ERROR = 2
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")  # Keras policies
# The default of a flag stays a policy: the same command then computes the
# same way on any processor, and scores compare with those of the paper.
AUTO_DTYPES = ("auto", *DTYPES)
DTYPE_HELP = (
    "Keras dtype policy of the computation; auto: bfloat16 where the "
    "processor, GPU or TPU has it, elsewhere float32."
)
DISTRIBUTIONS = ("off", "mirrored", "multi_worker", "tpu", "auto")
# Flags that functions of this file define are those of the script.
flags.disclaim_key_flags()
WRONG_PLACE = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
# A read-only file system, a loop of links, a name that is too long.
WRONG_SYSTEM = (errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)
# Of the script that this process runs:
_limits = []  # `applies_only`
_groups: dict[str, list] = {}  # `group_flags`
_choices = []  # `show_flags`
HELP = {"--help", "-h", "-help", "--helpshort"}
FULL = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
# What TensorFlow prints when it is imported; with CUDA, but without a GPU.
START_LINES = (
    "^WARNING: All log messages before absl::|oneDNN custom operations"
)
CUDA_LINES = "cudart_stub.cc|cuda_platform.cc"
LARGEST_SEED = 2**32 - 1  # that Keras and NumPy take
LARGEST_BATCH = 2**20  # rows; the largest run published takes 65,536


def start(main, define_flags, tensorflow=True, places=()):
    """Run `main(FLAGS)` as the command that this process was started as.

    Nothing heavy is imported before `main` runs, so that `--help` answers at
    once. An `InputError` is printed alone and exits with 2.

    Args:
        tensorflow: False of a script that runs where there is no TensorFlow.
        places: names of the arguments that are no flags; `main` gets their
            values after the flags.
    """
    stopping.install()
    outlive_reader()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings and errors
    if platform.machine() in ("x86_64", "AMD64"):
        # TensorFlow leaves oneDNN off on processors with AVX2 alone, where it
        # is the faster one too (docs/benchmarks.md).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.set_verbosity(logging.WARNING)
    define_flags()
    app.run(
        lambda words: _run(main, tensorflow, words[1:]),
        flags_parser=functools.partial(_parse, places),
    )


def define_overwrite():
    """--overwrite, without which `prepare_output` replaces nothing."""
    flags.DEFINE_bool("overwrite", False, "Replace what --output names.")


def define_fields(usual, texts, least=None):
    """A flag for each of these fields, with its type and its default.

    Args:
        usual: NamedTuple or dataclass of the defaults, or a dataclass.
        texts: name -> what `--help` says; or a pair of that and the choices.
        least: the smallest whole number; any where None.
    """
    is_class = isinstance(usual, type)
    hints = typing.get_type_hints(usual if is_class else type(usual))
    for name, text in texts.items():
        default, kind = getattr(usual, name), hints[name]
        if isinstance(text, tuple):
            flags.DEFINE_enum(name, default, text[1], text[0])
        elif kind is bool:
            flags.DEFINE_bool(name, default, text)
        elif isinstance(default, tuple):
            flags.DEFINE_list(name, list(map(str, default)), text)
        elif kind in (int, int | None):
            flags.DEFINE_integer(name, default, text, least)
        elif kind in (float, float | None):
            flags.DEFINE_float(name, default, text)
        elif kind in (str, str | None):
            flags.DEFINE_string(name, default, text)
        else:
            raise TypeError(f"{name}: there is no flag for {kind}")


def define_text(text):
    """What every tool that reads a corpus takes.

    Args:
        text: what `--help` says of --input.
    """
    flags.DEFINE_string("input", None, text)
    flags.DEFINE_string(
        "text_field",
        "text",
        "Where the text is in JSONL, Parquet and data sets.",
    )
    flags.DEFINE_bool(
        "lowercase",
        None,
        "Lower-case text; by default as the vocabulary's settings say, else "
        "yes.",
    )
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Strip accents; by default as the vocabulary's settings say, else as "
        "--lowercase.",
    )


def load_tokenizer(values):
    """Return the `WordPieceTokenizer` that --vocabulary names.

    It is a file, a model folder or the name of weights. --lowercase and
    --strip_accents may say what it leaves open.
    """
    from bert_keras import WordPieceTokenizer, files

    source, names = values.vocabulary, ("lowercase", "strip_accents")
    given = {name: getattr(values, name) for name in names}
    if files.is_file(source) or source.endswith(".txt"):
        return WordPieceTokenizer(source, **given)
    given = {name: value for name, value in given.items() if value is not None}
    return WordPieceTokenizer.from_preset(
        source, keep_special_tokens=False, **given
    )


def define_seed(text):
    """--seed, 0 by default; `text` is what `--help` says."""
    flags.DEFINE_integer("seed", 0, text, 0, LARGEST_SEED)


def prepare_output(values, is_folder=False, inputs=("input",)):
    """Refuse an --output that exists or is an input, before any work is done.

    With --overwrite it may exist. The folder of a new file is made.

    Args:
        is_folder: --output is a folder, which may exist if it is empty.
        inputs: names of the flags that name what is read; a flag that the
            script lacks is skipped.
    """
    from bert_keras import files

    path = values.output
    if not path:
        return
    if not is_folder:
        files.refuse_folder(path)
    is_there = files.is_file(path) or (
        files.is_folder(path) and files.list_folder(path)
    )
    if is_there and not values.overwrite:
        raise InputError(
            f"--output={path} is there already. Name another one, or give "
            "--overwrite to replace it."
        )
    sources = [getattr(values, name, None) for name in inputs]
    files.refuse_input_as_output(path, *sources)
    files.make_folder(os.path.dirname(files.absolute(path)))


def require(expected, check, *names):
    """Refuses values of these flags for which `check` is false.

    None passes.

    Args:
        expected: what the message names, such as "a number above 0".
        check: function of a value, or of each of a flag given again.
    """

    def holds(value):
        values = value if isinstance(value, list) else [value]
        return all(check(one) for one in values if one is not None)

    for name in names:
        flags.register_validator(name, holds, f"expected {expected}")


def require_positive(*names):
    """Refuses what is not a finite number above 0."""
    require("a number above 0", lambda v: 0 < v < math.inf, *names)


def applies_only(to, acts, *names):
    """Refuses flags where they would change nothing.

    A flag that is given with its default value passes.

    Args:
        to: what the flags apply to, such as "with --packed".
        acts: function of absl's FLAGS: whether the flags act.
        names: of flags.
    """
    _limits.append((to, acts, names))


def group_flags(title, *names):
    """Lists these flags under a title in `--help`, after the common ones."""
    _groups.setdefault(title, []).extend(names)


def show_flags(choose, *names):
    """Have `--help` show some of these flags only.

    Args:
        choose: function of absl's FLAGS; returns a dict of the flags to show
            and what `--help` says of each.
        names: of flags.
    """
    _choices.append((choose, names))


def check_limits(values):
    """Raises for the first flag that `applies_only` refuses."""
    for to, acts, names in _limits:
        given = [n for n in names if values[n].value != values[n].default]
        if given and not acts(values):
            names = ", ".join(
                f"--no{n}" if values[n].value is False else f"--{n}"
                for n in given
            )
            verb = "applies" if len(given) == 1 else "apply"
            raise InputError(f"{names} only {verb} {to}. Leave that out.")


def percentages(words) -> tuple[float, ...]:
    """The numbers of a list flag such as --mask_mix=80,10,10."""
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise InputError(
            f"Expected percentages such as 80,10,10; got {','.join(words)}."
        ) from None


def _parse(places, arguments):
    if HELP & set(arguments[1:]):
        # What cannot be read does not matter here.
        with contextlib.suppress(flags.Error):
            flags.FLAGS([word for word in arguments if word not in HELP])
        try:
            _print_help()
        except InputError as error:
            sys.exit(_print_error(str(error)))
        sys.exit(0)
    try:
        rest = flags.FLAGS(arguments)
        if rest[1 + len(places) :]:
            unexpected = " ".join(rest[1 + len(places) :])
            raise flags.Error(f"Unexpected argument: {unexpected}")
        if len(rest) <= len(places):
            raise flags.Error(f"Expected {' '.join(places)}")
        _expand_home()
        _check_encoding(arguments)
        return rest
    except flags.Error as error:
        sys.exit(_print_error(f"{error} (see --help)"))


def _print_help():
    """The script's docstring; the common flags, then those of each group."""
    script = sys.argv[0]
    own = {f.name: f for f in flags.FLAGS.get_key_flags_for_module(script)}
    for choose, names in _choices:
        shown = choose(flags.FLAGS)
        for name in names:
            if name in shown:
                own[name].help = shown[name]
            else:
                own.pop(name, None)
    grouped = {name for names in _groups.values() for name in names}
    sections = {
        f"flags:\n\n{script}": [name for name in own if name not in grouped],
        **_groups,
    }
    text = [sys.modules["__main__"].__doc__]
    for title, names in sections.items():
        section = flags.FlagValues()
        for name in dict.fromkeys(names):
            section[name] = own[name]
        flag_list = section.get_help("  ", include_special_flags=False)
        text.append(f"{title}:\n{flag_list}\n")
    print("\n".join(text), end="")


def _check_encoding(words):
    """Refuse names that are not UTF-8, which TensorFlow cannot open."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise flags.Error(
                f"{ascii(word)} is not UTF-8. Rename the file or the folder, "
                "or set a UTF-8 locale"
            ) from None


def _expand_home():
    """The home folder for "~/": a shell leaves `--output=~/runs` as it is."""
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if isinstance(flag.value, list):
            flag.value = [_at_home(value) for value in flag.value]
        else:
            flag.value = _at_home(flag.value)


def _at_home(value):
    is_path = isinstance(value, str) and value.startswith("~/")
    return os.path.expanduser(value) if is_path else value


def _run(main, tensorflow, words):
    show_warning = warnings.showwarning

    def show(message, category, *where):
        if issubclass(category, UntrainedWarning):
            _print_error(_with_flags(f"note: {message}"))
        else:
            show_warning(message, category, *where)

    warnings.showwarning = show
    logging.get_absl_handler().setFormatter(Formatter("note: %(message)s"))
    warnings.simplefilter("always", UntrainedWarning)
    code = USER_ERROR
    try:
        check_limits(flags.FLAGS)
        if tensorflow:
            _import_tensorflow()
        with stopping.work():
            code = main(flags.FLAGS, *words)
        return code
    except Stopped as error:
        _print_error(str(error))
        raise
    except InputError as error:
        return _print_error(_with_flags(str(error)))
    except WRONG_PLACE as error:
        return _print_error(
            f"{error.filename} cannot be written or read: {error.strerror}"
        )
    except Exception as error:
        if getattr(error, "errno", None) in WRONG_SYSTEM and error.filename:
            return _print_error(
                f"{error.filename} cannot be written or read: {error.strerror}"
            )
        reason = _full_disk(error)
        if reason is None:
            raise
        _drop_output()
        # Not 75: a queue would start it again on the same full disk.
        return _print_error(
            f"a file could not be written ({reason}). What was finished "
            "before is kept. Make room on the disk and give the same command "
            "again."
        )
    finally:
        stopping.end_with(code or 0)


def _import_tensorflow():
    """Import TensorFlow and list the devices, without lines that say nothing.

    TensorFlow writes these before it reads TF_CPP_MIN_LOG_LEVEL. Every other
    line passes through at once, also where the import ends the process. What
    it says of CUDA is dropped in a machine without a GPU alone.
    """
    dropped = START_LINES
    if not glob.glob("/dev/nvidia[0-9]*"):
        dropped = f"{dropped}|{CUDA_LINES}"
    with contextlib.ExitStack() as stack:
        if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0" and shutil.which("grep"):
            stack.enter_context(_without_lines(dropped))
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def _without_lines(pattern):
    """Pass standard error of this process through a filter."""
    sys.stderr.flush()
    kept = os.dup(2)
    command = ["grep", "--line-buffered", "-avE", pattern]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=kept, start_new_session=True
    ) as grep:
        os.dup2(grep.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _full_disk(error):
    """What the system said, where a full disk caused an error; or None.

    TensorFlow and safetensors have errors of their own, with its words.
    """
    while error is not None:
        for reason in FULL:
            if reason in str(error):
                return reason
        error = error.__cause__ or error.__context__
    return None


class _Output(io.FileIO):
    """Output that drops what nobody reads any more."""

    is_read = True

    def write(self, data):
        try:
            return super().write(data)
        except BrokenPipeError:
            _Output.is_read = False
            return len(data)


def output_is_read() -> bool:
    """Return False once the reader of the output has closed it."""
    return _Output.is_read


def outlive_reader():
    """Have the process go on, and write its files, with `| head` too."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        kind = type(getattr(output, "buffer", None))
        if kind not in (io.BufferedWriter, io.FileIO):
            continue  # replaced by a caller
        raw = _Output(output.fileno(), "w", closefd=False)
        wrapped = io.TextIOWrapper(
            # A file by itself where Python runs unbuffered.
            raw if kind is io.FileIO else io.BufferedWriter(raw),
            output.encoding,
            output.errors,
            line_buffering=output.line_buffering,
            write_through=output.write_through,
        )
        setattr(sys, name, wrapped)


def _drop_output():
    """Drop what cannot be written, for Python not to try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_flags(message):
    """The message with the arguments in it as flags of this script.

    The library says `verify=False` where the command line says `--noverify`.
    """

    def flag(argument):
        name, value = argument.groups()
        if name not in flags.FLAGS:
            return argument[0]
        return f"--{'' if value == 'True' else 'no'}{name}"

    return re.sub(r"(?<!-)\b([a-z_]+)=(True|False)\b", flag, message)


def _print_error(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    return USER_ERROR
