"""Finding a call its place: what is known of the call, and the way through policy, admission and waiting room."""
