"""The settings of a run, section by section, and the rules that choose values for open settings."""
