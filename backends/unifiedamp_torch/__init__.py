"""The torch backend of unifiedamp."""
