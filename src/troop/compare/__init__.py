"""Compare recipes: same env, budget and seeds on one machine, ranked by time to a threshold."""
