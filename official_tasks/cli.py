r"""Runs any script of the package as `bert-keras NAME`, from any folder.

    bert-keras finetune --task=mrpc --data_dir=glue --init=runs/pretrain/model \
        --output=runs/mrpc
    bert-keras export --help
    bert-keras --list
    bert-keras --version

`python -m official_tasks.finetune` and, in a clone, `python tools/export.py`
are the same scripts.

Exit code 0 means success. Code 2 means a user error, a full disk or an I/O
error. Code 3 means that the training of a run failed; the same command does not
repeat this run. Code 75 means that Ctrl-C or SIGTERM stopped the script. The
same command then resumes from saved work, or starts again.
"""

import ast
import contextlib
import difflib
import functools
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import warnings
from logging import Formatter
from pathlib import Path

from absl import app, flags, logging

from bert_keras import __version__, files, full_disk
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interrupts import Stopped
from official_tasks import loading, options, stopping

USER_ERROR = 2
FAILED_RUN = 3  # `exit_code` of an `InputError`
HELP = {"--help", "-h", "-help", "--helpshort"}


def main():
    """Run the command that `sys.argv` names."""
    with report_errors():
        commands = find_commands()
        name, *words = sys.argv[1:] or ["--help"]
        known = name.replace("-", "_")
        if known in commands:
            module, _ = commands[known]
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        width = max(map(len, commands))
        lines = [f"{n:{width}}  {line}" for n, (_, line) in commands.items()]
        texts = {"--version": [f"bert_keras {__version__}"], "--list": lines}
        texts |= dict.fromkeys([*HELP, "help"], [__doc__, *lines])
        if name not in texts:
            nearest = difflib.get_close_matches(known.lower(), commands)
            hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
            raise InputError(
                f"there is no command {name!r}.{hint} bert-keras --list prints "
                "all commands."
            )
        print("\n".join(texts[name]), flush=True)


def find_commands():
    """Return a dict: name of a script -> (module, first line of docstring).

    The scripts are read as text, which is faster than importing them.
    """
    commands = {}
    scripts = Path(__file__).parent
    packages = {"official_tasks": scripts}
    if spec := importlib.util.find_spec("official_tasks.tools"):
        (folder, *_) = spec.submodule_search_locations
        packages["official_tasks.tools"] = Path(folder)
    else:  # a clone that is not installed
        packages["tools"] = scripts.parent / "tools"
    for package, folder in packages.items():
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n    cli.start(main" in text:
                line, *_ = ast.get_docstring(ast.parse(text)).splitlines()
                commands[path.stem] = f"{package}.{path.stem}", line
    return commands


def start(main, cls=options.NoOptions, arguments=()):
    """Run `main(FLAGS)` as the command of this process.

    `main` imports Keras and TensorFlow itself, so that `--help` prints at once.
    `--help` prints the script's docstring and its flags.

    Args:
        main: function of absl's FLAGS and of the values of `arguments`. It
            returns the exit code; None means 0.
        cls: dataclass of the script's options; see `official_tasks.options`.
        arguments: names of the positional arguments.
    """
    stopping.open_streams()
    stopping.install()
    loading.prepare()
    logging.set_verbosity(logging.WARNING)
    options.define_flags(cls)
    with report_errors():
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


def _parse(cls, arguments, words):
    """Return the words of a command that are no flags; set the flags.

    If the command asks for help, print it and exit.
    """
    program, *words = words
    words = flags.FLAGS.read_flags_from_files(words, force_gnu=False)
    words = [program, *map(_expand_home, words)]
    if HELP & {*words}:
        # Print the help even if another flag is invalid.
        with contextlib.suppress(flags.Error):
            flags.FLAGS([word for word in words if word not in HELP])
        print(_describe_flags(cls), end="", flush=True)
        sys.exit()
    try:
        rest = flags.FLAGS(words)
    except flags.UnrecognizedFlagError:
        # Flags depend on the task: raise InputError if there is no such task.
        options.list_flags(cls)
        raise
    if len(rest) != 1 + len(arguments):
        expected, found = (" ".join(part) for part in (arguments, rest[1:]))
        raise flags.Error(
            f"expected {expected or 'only flags'}, got {found or 'only flags'}"
        )
    return rest


def _expand_home(word):
    """Expand "~/" in a flag: shells do not expand it in `--output=~/runs`.

    Raises:
        flags.Error: the word may be a path, and is not UTF-8, but TensorFlow
            opens only paths in UTF-8.
    """
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise flags.Error(
            f"{ascii(word)} is not UTF-8. Rename the file or the folder, or "
            "set a UTF-8 locale"
        ) from None
    home = os.path.expanduser("~/")
    return re.sub(r"(^|^--?\w+=|,)~/", lambda found: found[1] + home, word)


def _describe_flags(cls):
    text = [sys.modules["__main__"].__doc__]
    for title, named in options.list_flags(cls).items():
        section = flags.FlagValues()
        for name, flag in named.items():
            section[name] = flag
        flag_list = section.get_help("  ", include_special_flags=False)
        text.append(f"{title or 'flags'}:\n{flag_list}\n")
    return "\n".join(text)


def _run(main, cls, words):
    logging.get_absl_handler().setFormatter(Formatter("note: %(message)s"))
    warnings.showwarning = functools.partial(_warn, warnings.showwarning)
    warnings.simplefilter("always", UntrainedWarning)
    options.check_conditions(cls, flags.FLAGS)
    with stopping.work():
        code = main(flags.FLAGS, *words)
        sys.stdout.flush()
    stopping.end_with(code or 0)
    return code


def _warn(show, message, category, *where):
    if issubclass(category, UntrainedWarning):
        print_error(with_flags(f"note: {message}"))
    else:
        show(message, category, *where)


@contextlib.contextmanager
def report_errors():
    """Print an error as one line and exit with its code.

    An internal error keeps its traceback.
    """
    code = 0
    try:
        yield
        return
    except BrokenPipeError:  # the pipe's reader, such as `head`, has ended
        stopping.end_with(code)
    except (Exception, Stopped) as error:
        code = getattr(error, "exit_code", USER_ERROR)
        stopping.end_with(code)
        message = _explain(error)
        if message is None:
            raise
        print_error(message)
    _drop_output(sys.stdout)
    sys.exit(code)


def _explain(error):
    """Return the message on an error, or None if it is an internal error."""
    if isinstance(error, InputError | Stopped):
        return with_flags(str(error))
    if isinstance(error, flags.Error):
        return f"{error} (see --help)"
    path = getattr(error, "filename", None)
    name = path or "A file or the standard output"
    if reason := full_disk.find_reason(error):
        # The exit code is not 75, because a job queue would then run the
        # command again, on the full disk.
        return (
            f"{name} could not be written ({reason}). Finished work is kept. "
            "Make room on the disk and run the command again."
        )
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno in files.TEMPORARY:
        return (
            f"{name} could not be read or written ({error.strerror}). Finished "
            "work is kept. Run the command again."
        )
    return path and (
        f"{path} cannot be written or read: {error.strerror}. Check the path "
        "and its permissions."
    )


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


def print_error(message):
    """Print a line with the program's name to standard error."""
    text = f"{stopping.find_program()}: {message}"
    with contextlib.suppress(OSError):  # the exit code still tells
        print(text, file=sys.stderr, flush=True)
    _drop_output(sys.stderr)


def _drop_output(stream):
    """Drop output that cannot be written; Python would retry this at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
