"""Facts about what every process did, and the views made from them."""
