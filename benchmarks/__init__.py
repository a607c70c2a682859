"""Measurements as programs, in folders by question; they run from a checkout."""

import signal
import sys

if sys.argv[0] == "-m":  # Python is about to run a module of this package as a program
    # SIGTERM ends it as Ctrl-C does, with the processes that it has started
    signal.signal(signal.SIGTERM, signal.default_int_handler)
