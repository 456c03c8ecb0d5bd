"""Formats of model APIs."""
