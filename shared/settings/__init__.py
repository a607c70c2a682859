"""The settings of a run by section, and the rules that choose values for unset settings."""
