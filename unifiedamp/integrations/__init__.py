"""A session inside other people's trainers and tools: one module per library.

Importing this package imports no library. Each module imports its own, and says which version it needs.
"""
