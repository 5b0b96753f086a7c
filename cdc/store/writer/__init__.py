"""The log on disk, as its one writer sees it.

``log`` is the way in, for capture's stream and for puts of whole transactions; ``put``, ``tail`` and ``lot`` turn
transactions into bytes and entries; ``flush`` makes them durable, then visible, as ``policy`` says; ``segment``,
``index`` and ``checkpoint`` are the files (``docs/formats``). Nothing is visible before its bytes are on the disk.
"""
