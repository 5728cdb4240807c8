"""The tensorflow backend of unifiedamp."""
