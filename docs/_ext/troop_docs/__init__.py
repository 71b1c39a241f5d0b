"""Sphinx extension of Troop's documentation: reference pages generated from the code."""
