"""Secure aggregation: masks that cancel in a sum and hide the single vectors.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017). The
graph is from Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (2020).
Everything here is pure.
"""
