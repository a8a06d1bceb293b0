"""Output under a grammar: what clients ask for as a grammar, its compilation, and the tokens it allows."""
