"""Measurements as programs, in folders by question, run from a checkout."""

import signal
import sys

if sys.argv[0] == "-m":  # a module of this package runs as a program
    # SIGTERM then ends the program and its child processes, like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
