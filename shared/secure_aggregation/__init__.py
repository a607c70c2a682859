"""Secure aggregation: masks that cancel in a sum, so that nobody sees what was added up.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017); the
graph is that of Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead
(2020). Everything here is pure: values in, values out.
"""
