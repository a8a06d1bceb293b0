"""The serving engine: everything between a validated request and its tokens."""
