"""The stateless router: discovery, policies, admission and the relay."""
