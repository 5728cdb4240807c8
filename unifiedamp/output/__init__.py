"""Files, terminal text and pages that the commands write."""
