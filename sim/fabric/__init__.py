"""Fabrics: links, routes and fair shares of a cluster."""
