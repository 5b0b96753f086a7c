"""The compiler of kernels, those that were built ahead, the cache, and what all kernels share: bytes, CRC32 and zstd.

Imports ``cdc.base`` and ``cdc.disk`` alone. It promises that a kernel which was built ahead, or compiled once, is
loaded without Numba.
"""
