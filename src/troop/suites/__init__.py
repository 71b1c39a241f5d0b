"""Suites: lists of tasks with reference returns, and the report of recipes trained on them."""
