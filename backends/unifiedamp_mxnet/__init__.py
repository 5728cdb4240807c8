"""The mxnet backend of unifiedamp."""
