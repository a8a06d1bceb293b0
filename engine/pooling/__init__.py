"""From a prompt's hidden states to one vector: how, for which models, and with which defaults."""
