"""From logits to tokens: penalties, filters, draws and log-probabilities."""
