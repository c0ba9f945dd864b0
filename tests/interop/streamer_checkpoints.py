"""
Checkpoints of a streamer through the classes of Java Hudi, in the oracle's Python.

    read TABLE             the newest checkpoint of the active timeline, as HoodieStreamer finds it
    entries TEXT [RESET]   the entries that HoodieStreamer puts into the commit of a batch

The bundle of Spark has these classes, but not HoodieStreamer itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def gateway(jar: str) -> Any:
    """Start a JVM with the bundle, without a Spark session."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-memory 512m --driver-class-path {jar} pyspark-shell"
    )
    from pyspark.java_gateway import launch_gateway

    return launch_gateway()


def newest(jvm: Any, path: str) -> dict[str, str | None]:
    """Return the checkpoint of the newest commit that has one."""
    hudi = jvm.org.apache.hudi
    conf = hudi.storage.hadoop.HadoopStorageConfiguration(
        jvm.org.apache.hadoop.conf.Configuration()
    )
    client = (
        hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(path).build()
    )
    timeline = client.getActiveTimeline().getCommitsTimeline().filterCompletedInstants()
    for instant in timeline.getReverseOrderedInstants().iterator():
        metadata = hudi.common.table.timeline.TimelineUtils.getCommitMetadata(instant, timeline)
        try:
            found = hudi.common.table.checkpoint.CheckpointUtils.getCheckpoint(metadata)
        except Exception as error:
            if "Checkpoint is not found" in str(error):
                continue
            raise
        return {
            "class": found.getClass().getSimpleName(),
            "checkpoint": found.getCheckpointKey(),
            "reset": found.getCheckpointResetKey(),
        }
    return {}


def main() -> None:
    """Run one command; print JSON."""
    jar, command, *words = sys.argv[1:]
    jvm = gateway(jar).jvm
    if command == "read":
        answer: Any = newest(jvm, words[0])
    else:
        text, reset = (*words, None)[:2]
        checkpoint = jvm.org.apache.hudi.common.table.checkpoint.StreamerCheckpointV2(text)
        answer = dict(checkpoint.getCheckpointCommitMetadata(reset, None))
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
