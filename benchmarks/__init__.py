"""Measurements as programs, in folders by question; they run from a checkout."""

import signal
import sys

if sys.argv[0] == "-m":  # Python will run a module of this package as a program
    # SIGTERM then ends the program like Ctrl-C, together with the processes that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
