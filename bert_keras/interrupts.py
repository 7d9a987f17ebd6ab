"""Handler of Ctrl-C and SIGTERM, which ask a program to stop."""

import os
import signal
import time

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: temporary failure
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Signals within this number of seconds count as one request, because `timeout`
# and some schedulers signal first the process and then its process group.
ONE_REQUEST = 0.3


class Stopped(SystemExit):
    """Raised after a request to stop, with exit code 75."""

    exit_code = EXIT_CODE

    def __init__(self, message="Stopped. Run the same command again."):
        super().__init__(self.exit_code)
        self.message = message

    def __str__(self):
        return self.message


class StopRequest:
    """Handler of Ctrl-C and SIGTERM.

    The first signal calls `act`. A signal more than `ONE_REQUEST` seconds later
    ends the process. A signal that the process ignores stays ignored. For
    example, a background job of a shell script ignores SIGINT.

    Attributes:
        act: function without arguments, called at the first signal.
        is_set: True after the first signal.
    """

    def __init__(self, act=lambda: None):
        self.is_set = False
        self.act = act
        self._first = 0.0
        self._before = {}

    def install(self):
        """Handle the signals from now on. Call this in the main thread."""
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None, self):
                self._before[number] = signal.signal(number, self)

    def restore(self):
        """Reinstall the handlers from before `install`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def __call__(self, number, frame):
        now = time.monotonic()
        if not self.is_set:
            self.is_set, self._first = True, now
            self.act()
        elif now - self._first > ONE_REQUEST:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
