"""Files and pages that the commands write."""
