"""The server side: strategy, aggregation, sampling and storage, without torch."""

if __name__ != "samara.server":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
