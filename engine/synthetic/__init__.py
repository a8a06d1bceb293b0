"""Serving without a model: ranks that only take the time a model would, and loads to try the engine with."""
