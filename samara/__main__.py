"""The entry point of ``python -m samara``, which runs the command ``samara``."""

from samara.command import main

main()
