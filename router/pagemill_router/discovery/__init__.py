"""Where replicas are: sources behind one interface."""
