"""Secure aggregation: masks that hide each vector and cancel in the sum.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017). The
graph is from Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (2020).
The package only computes; its callers send and store messages.
"""
