"""Federations simulated on one machine."""

if __name__ != "samara.simulations":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
