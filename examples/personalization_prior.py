"""A custom personalization that uses a client's label frequencies as a prior, without a solver.

The scores of a classifier are log-odds. Prior correction shifts them to the client's base rate: it
adds log(frequency of the label on the client) − log(mean probability that the model gives to the
label) to each label's score (Saerens et al., Adjusting the Outputs of a Classifier to New a Priori
Probabilities, 2002, equation 2.4). Here the frequencies are known from the client's labels.

    python examples/personalization_prior.py
"""

import numpy as np
from scipy.special import softmax

import samara
from samara.register import Examples, SoftmaxFit

PSEUDOCOUNT = 5.0
"""Number of examples as which the model's mean probabilities count in a client's frequencies. A
client with few examples then stays close to the model."""


def prior(examples: Examples) -> SoftmaxFit:
    """Return an intercept computed from label counts, and a readout of zeros."""
    labels = examples.offsets.shape[1]
    assumed = softmax(examples.offsets, axis=1).mean(axis=0)
    counts = np.bincount(examples.labels, minlength=labels)
    wanted = (counts + PSEUDOCOUNT * assumed) / (len(examples.labels) + PSEUDOCOUNT)
    intercept = np.log(wanted) - np.log(assumed)
    return SoftmaxFit(
        intercept - intercept.mean(), np.zeros((labels - 1, examples.features.shape[1]))
    )


def main(rounds: int = 10, clients: int = 8) -> samara.Comparison:
    """Compare the prior with the built-in fit and the global model; print and return the result."""
    samara.register.personalization("prior", prior)
    settings = {
        "rounds": rounds,
        "data": {"clients": clients, "partition": "dirichlet"},
        "adapter": {"label-bias": True},
    }
    first, *others = (
        samara.simulate(settings, method=method) for method in ("global", "readout", "prior")
    )
    comparison = first.compare(*others)
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
