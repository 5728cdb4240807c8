"""The resolved plan of a session, and advice on layer sizes."""
