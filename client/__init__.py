"""The device side: a session that catches up, trains by zeroth-order steps and reports scalars."""

if __name__ != "samara.client":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
