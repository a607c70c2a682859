"""Shared code of all sides: errors, settings, directions, replay, frames, ledger, tasks."""

DISTRIBUTION = "samara-fl"
"""Name of Samara on the Python package index, where ``samara`` is another project."""

if __name__ != "samara.shared":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
