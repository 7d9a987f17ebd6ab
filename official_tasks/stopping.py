"""Ends a script on Ctrl-C or SIGTERM: one line, exit code 75, no traceback.

Outside of a `with work():` block, no file is half-written, so a signal ends the
process at once. In the block, a signal raises `Stopped` in the main thread.
During an import, `Stopped` is raised later, because an exception in the import
of a C++ module would abort the process. Python drops exceptions in destructors
and in callbacks of the garbage collector, and libraries turn exceptions into
other errors. So this module remembers the signal and raises `Stopped` again, a
moment later or in `check`.
"""

import atexit
import contextlib
import functools
import itertools
import os
import re
import signal
import sys
import threading

from bert_keras.interrupts import EXIT_CODE, SIGNALS, Stopped, StopRequest

LATER = 0.05  # seconds to the next attempt to raise `Stopped`
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # file name of the import code

closed: set[str] = set()  # standard streams that the process lacked


def open_streams():
    """Open /dev/null for each standard stream that the process lacks.

    After `>&-`, `sys.stdout` is None, and the next file that is opened would
    get the descriptor of standard output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, mode))
            closed.add(name)


def install():
    """Handle Ctrl-C and SIGTERM for the rest of the process."""
    _request.install()
    sys.unraisablehook = _handle_dropped
    atexit.register(_ignore_signals)


@contextlib.contextmanager
def work():
    """Make a signal raise `Stopped` during a `with` block.

    If the block raises another error after a signal, `Stopped` replaces it.
    """
    _request.act = _raise
    try:
        yield
    except BaseException as error:
        if _request.is_set and not isinstance(error, Stopped):
            raise Stopped from error
        raise
    finally:
        _request.act = _end


def check():
    """Raise `Stopped` again after a signal.

    A library may have dropped the first `Stopped`.
    """
    if _request.is_set:
        raise Stopped


def end_with(code):
    """Exit with `code` if a signal arrives from now on.

    Scripts pass their exit code here at their end, so that a late signal does
    not change it.
    """
    _request.act = functools.partial(_end, code)


def find_program() -> str:
    """Return the name of the script or module that the process runs."""
    if sys.argv[0] == "-m":  # until `python -m` has found the module
        for word, following in itertools.pairwise(sys.orig_argv):
            # Other options without a value may precede "m", as in `-um`.
            if match := re.fullmatch(r"-[bBdEhiIOPqsSuvx]*m(.*)", word):
                return match[1] or following
    return os.path.basename(sys.argv[0])


def is_script() -> bool:
    """Return True if the process runs a script of this package or tools/."""
    if sys.argv[0] == "-m":
        return find_program().startswith("official_tasks.")
    # A worker process has the `sys.argv` of its parent, but no such file.
    path = getattr(sys.modules["__main__"], "__file__", None) or os.sep
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    is_tool = os.path.abspath(path).startswith(os.path.join(root, "tools", ""))
    return is_tool or os.path.basename(path).startswith("bert-keras")


def _end(code=EXIT_CODE):
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if code == EXIT_CODE:
        with contextlib.suppress(OSError):
            os.write(2, f"{find_program()}: {Stopped()}\n".encode())
    os._exit(code)


def _raise():
    """Raise `Stopped`, but during an import do so a moment later."""
    frame = sys._getframe()
    while frame and frame.f_code.co_filename != IMPORT_SYSTEM:
        frame = frame.f_back
    if frame is None:
        raise Stopped
    _signal_later()


def _signal_later():
    def send():
        if _request.act is _raise:
            _request.is_set = False
            # This interrupts the main thread even in a system call that blocks.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    timer = threading.Timer(LATER, send)
    timer.daemon = True
    timer.start()


def _handle_dropped(dropped):
    if isinstance(dropped.exc_value, Stopped):
        _signal_later()
    else:
        sys.__unraisablehook__(dropped)


def _ignore_signals():
    """Ignore signals while the interpreter ends.

    At exit, Python restores the default handler of each signal that is not
    ignored. Then a late signal would change the exit code of finished work.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is _request:
            signal.signal(number, signal.SIG_IGN)


_request = StopRequest(_end)
