"""``python -m samara``: the command."""

from samara.command import main

main()
