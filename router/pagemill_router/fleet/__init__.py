"""What this router knows of the replicas: one task a replica, and frozen views for the policies."""
