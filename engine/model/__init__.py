"""The model family: where weights come from and how one forward pass runs."""
