"""Conversions: the second step of decoding, for types whose bytes the kernels only copy.

``base`` has what they share, ``temporal`` dates and times, ``values`` the other types with a few lines each. The
package imports kernels and nothing else of the decoder; character sets and binary JSON build on it.
"""
