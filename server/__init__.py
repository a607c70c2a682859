"""Server-side code: strategy, aggregation, client sampling and storage. It never imports torch."""

if __name__ != "samara.server":
    from samara.shared.old_names import make_way

    make_way(__name__, __path__)
