"""Recipes side by side: the same env, budget and seeds on this machine, and what came of it."""
