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
import os
import signal
import sys
import threading
import types

from bert_keras.interrupts import EXIT_CODE, SIGNALS, Stopped, StopRequest

LATER = 0.05  # seconds to the next attempt to raise `Stopped`
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # file name of the import code

closed: set[str] = set()  # standard streams that the process lacked
_state = types.SimpleNamespace(is_working=False, code=EXIT_CODE, hook=None)


def _act():
    if _state.is_working:
        if _is_importing():
            _deliver_later()
            return
        raise Stopped
    code = _state.code
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if code == EXIT_CODE:
        with contextlib.suppress(OSError):
            os.write(2, f"{_script_name()}: {Stopped()}\n".encode())
    os._exit(code)


def _script_name():
    words = sys.orig_argv
    if sys.argv[0] == "-m":
        return words[words.index("-m") + 1]
    return os.path.basename(sys.argv[0])


_request = StopRequest(_act)


def install():
    """Handle Ctrl-C and SIGTERM for the rest of the process."""
    _request.install()
    if _state.hook is None:
        _state.hook, sys.unraisablehook = sys.unraisablehook, _handle_dropped
        atexit.register(_ignore_signals)


def open_streams():
    """Open /dev/null for each standard stream that the process lacks.

    After `>&-`, `sys.stdout` is None, and the next file that is opened would
    get the descriptor of standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            stream = os.fdopen(opened, "w" if number else "r")
            setattr(sys, name, stream)
            closed.add(name)


def _ignore_signals():
    """Ignore signals while the interpreter ends.

    At exit, Python restores the default handler of each signal that is not
    ignored. Then a late signal would change the exit code of finished work.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is _request:
            signal.signal(number, signal.SIG_IGN)


def _handle_dropped(dropped):
    if not isinstance(dropped.exc_value, Stopped):
        _state.hook(dropped)
    elif _state.is_working:
        _deliver_later()


def _is_importing():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame and frame.f_code.co_filename != IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None


def _deliver_later():
    timer = threading.Timer(LATER, _deliver)
    timer.daemon = True
    timer.start()


def _deliver():
    if not _state.is_working:
        return
    if _is_importing():
        _deliver_later()
        return
    _request.is_set = False
    # A signal interrupts the main thread even in a blocking system call.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


@contextlib.contextmanager
def work():
    """Make a signal raise `Stopped` during a `with` block.

    If the block raises another error after a signal, `Stopped` replaces it.
    """
    _state.is_working = True
    try:
        yield
    except BaseException as error:
        if _request.is_set and not isinstance(error, Stopped):
            raise Stopped from error
        raise
    finally:
        _state.is_working = False


def check():
    """Raise `Stopped` again after a signal.

    A library may have dropped the first `Stopped`.
    """
    if _request.is_set and _state.is_working:
        raise Stopped


def end_with(code):
    """Exit with `code` if a signal arrives later, outside `work`.

    Scripts pass their exit code here at their end, so that a late signal does
    not change it.
    """
    _state.code = code


def is_program() -> bool:
    """Return True if the process runs a script of this package or tools/."""
    words = sys.orig_argv
    if "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        return module.startswith("official_tasks.")
    path = getattr(sys.modules["__main__"], "__file__", None) or ""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    tools = os.path.join(root, "tools", "")
    is_tool = os.path.abspath(path).startswith(tools)
    return is_tool or os.path.basename(path).startswith("bert-keras")
