"""Munchausen DQN as a package outside Troop: algorithm, network and recipe."""
