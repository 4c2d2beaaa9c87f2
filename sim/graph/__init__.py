"""The ExecutionGraph: the container every strategy and trace becomes, and its builder."""
