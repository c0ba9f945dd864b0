"""
Sources: each reads rows from a checkpoint on, and names the checkpoint after them.

A source is chosen by the name of Hudi's class, which is never imported (SEC4).
"""

from __future__ import annotations

from difflib import get_close_matches

from hoodoo.streamer.settings import StreamerSettings
from hoodoo.streamer.sources.files import FileSource
from hoodoo.streamer.sources.source import Source
from timeline.properties.options import PropertySet
from timeline.storage.open_storage import storage_for
from timeline.system import SystemClock

_PACKAGE = "org.apache.hudi.utilities.sources."
_FILES = {
    "ParquetDFSSource": ".parquet",
    "JsonDFSSource": ".json",
    "CsvDFSSource": ".csv",
    "AvroDFSSource": ".avro",
}


def open_source(settings: StreamerSettings, properties: PropertySet) -> Source:
    """
    Return the source that the settings name; nothing is read yet.

    Raises:
        SettingError: No source is named, hoodoo has no such source, or an option of it is missing.
    """
    if settings.source_class is None:
        raise StreamerSettings.missing(
            properties, "source_class", f"one of {', '.join(_FILES)}", "the streamer"
        )
    name = settings.source_class.removeprefix(_PACKAGE)
    if name in _FILES:
        if settings.files_root is None:
            raise StreamerSettings.missing(properties, "files_root", "a folder, /in", name)
        return FileSource(
            storage_for(settings.files_root, options=properties),
            SystemClock(),
            ending=_FILES[name],
            bytes_max=settings.source_limit,
            settle_ms=settings.files_settle_ms,
        )
    near = get_close_matches(name, _FILES, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}" if near else f"use one of {', '.join(_FILES)}"
    raise StreamerSettings.refusal(properties, "source_class", f"hoodoo has no such source; {hint}")
