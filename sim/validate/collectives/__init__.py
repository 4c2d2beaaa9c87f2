"""The accuracy board of collectives: rows, clusters, predictions, scores."""
