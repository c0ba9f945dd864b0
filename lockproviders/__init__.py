"""
The lock port, implemented by interchangeable lock providers.

Each provider is one file or folder (``filesystem.py``, ``inprocess.py``). All providers share
``acquire.py`` (waiting, holding) and ``registry.py`` (choosing). To add a provider,
read ``client.py`` and ``hookspecs.py``, and subclass ``testing/suite.py``.
"""
