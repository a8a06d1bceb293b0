"""Grafana: boards that are made from the catalogue's metrics, and what Prometheus and Grafana need beside them."""
