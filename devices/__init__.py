"""Devices: hardware models, live clients, Jetson boards and phones."""

if __name__ != "samara.devices":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
