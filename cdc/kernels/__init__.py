"""The compiler of kernels and its cache, and the kernels that all others share: bytes, CRC32 and zstd.

Imports ``cdc.base`` and ``cdc.disk`` alone. It promises that a kernel which was compiled once is loaded without Numba.
"""
