"""Compiled kernels that turn Canal's entries into messages."""
