"""Prepare the process from which workers are forked.

`multiprocessing` starts the process and imports this module; see
`workers.forks`. The process and its forks ignore Ctrl-C.
"""

import pickle
import signal
import sys


def _show_error(kind, error, trace):
    """Print an error, unless it only shows that the parent ended.

    If the parent ends before it has sent all its data, unpickling the data
    raises an error.
    """
    if not issubclass(kind, (pickle.UnpicklingError, EOFError)):
        sys.__excepthook__(kind, error, trace)


signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.excepthook = _show_error
