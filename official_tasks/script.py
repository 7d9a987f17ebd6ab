"""Help, one-line messages and exit codes that all scripts share.

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
import warnings
from logging import Formatter

from absl import app, flags, logging

from bert_keras import files, full_disk
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interrupts import Stopped
from official_tasks import loading, options, stopping
from official_tasks.options import NoOptions, list_flags
from official_tasks.overwriting import refuse_input_as_output

USER_ERROR = 2
FAILED_RUN = 3  # `exit_code` of an `InputError`
HELP = {"--help", "-h", "-help", "--helpshort"}
# Errors of the operating system that a wrong path causes.
PATH_ERRORS = {
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG),
}


def start(main, cls=NoOptions, arguments=()):
    """Run `main(FLAGS)` as the command of this process.

    `main` imports Keras and TensorFlow itself, so that `--help` prints at once.
    An `InputError` prints one line and exits with `USER_ERROR`.

    Args:
        main: function of absl's FLAGS and of the values of `arguments`. It
            returns the exit code; None means 0.
        cls: dataclass of the script's options; see `official_tasks.options`.
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
    options.define_flags(cls)
    app.run(
        lambda words: _run(main, cls, words[1:]),
        flags_parser=functools.partial(_parse, cls, arguments),
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


def load_tokenizer(values):
    """Return the `WordPieceTokenizer` that --vocabulary names.

    --vocabulary is a file, a model folder or the name of weights. --lowercase
    must not contradict the vocabulary's settings. --strip_accents overrides the
    setting of a folder or of weights, but must equal a setting stored next to a
    vocabulary file.
    """
    from bert_keras import WordPieceTokenizer

    source, names = values.vocabulary, ("lowercase", "strip_accents")
    chosen = {name: getattr(values, name) for name in names}
    if files.is_file(source) or source.endswith(".txt"):
        return WordPieceTokenizer(source, **chosen)
    chosen = {k: v for k, v in chosen.items() if v is not None}
    return WordPieceTokenizer.from_preset(
        source, keep_special_tokens=False, **chosen
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


def _parse(cls, arguments, words):
    if HELP & set(words[1:]):
        # Print the help even if another flag is invalid.
        with contextlib.suppress(flags.Error):
            flags.FLAGS([word for word in words if word not in HELP])
        try:
            _print_help(cls)
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
            _check_task(cls)
        text = re.sub(
            r"^flag --\w+=None: Flag (--\w+) must have a value.*",
            r"\1 is missing",
            str(error),
        )
        sys.exit(print_error(f"{text} (see --help)"))


def _check_task(cls):
    """Exit if there is no such task, because flags depend on the task."""
    try:
        list_flags(cls)
    except InputError as error:
        sys.exit(print_error(str(error)))


def _print_help(cls):
    text = [sys.modules["__main__"].__doc__]
    for title, named in list_flags(cls).items():
        section = flags.FlagValues()
        for name, flag in named.items():
            section[name] = flag
        flag_list = section.get_help("  ", include_special_flags=False)
        text.append(f"{title or 'flags'}:\n{flag_list}\n")
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


def _run(main, cls, words):
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
        options.check_conditions(cls, flags.FLAGS)
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
