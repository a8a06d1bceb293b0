"""Executors: how a step plan reaches the workers and how their answer comes back."""
