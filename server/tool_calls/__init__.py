"""Tool calls in a model's text: one parser for each of the forms that models write them in."""
