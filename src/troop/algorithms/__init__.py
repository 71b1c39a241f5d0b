"""AXIS 2: what is learned from a batch."""

from troop.algorithms.fast_td3 import FastTD3, FastTD3Config, FastTD3Policy

__all__ = ["FastTD3", "FastTD3Config", "FastTD3Policy"]
