#!/usr/bin/env python3
"""
A Spark session at a Hive Metastore, with Hudi's bundle or with hoodoo: `catalog_oracle.py JOB.json`.

The job has `uri` (the metastore), `folder` (for the session's own files) and, for Java, `jar` (Hudi's
bundle) and `syncs` (pairs of a table's path and properties for Hudi's HiveSyncTool). Then each line of
standard input is a JSON list of SQL texts, and its answer a line: one list of rows for each text, or the
error as a text. Java needs an environment with Spark 3.5, as java_oracle.py makes it.
"""

import json
import os
import sys

OPENED = ("java.lang", "java.nio", "sun.nio.ch")


def main(path):
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Spark prints to standard output, too
    spark = session(job)
    spark.sparkContext.setLogLevel("OFF")
    if "jar" not in job:
        import hoodoo.spark

        hoodoo.spark.install(spark)
    jvm, conf = spark._jvm, spark.sparkContext._jsc.hadoopConfiguration()
    for table, properties in job.get("syncs", ()):
        given = jvm.java.util.Properties()
        base = {"hoodie.datasource.meta.sync.base.path": table, "hoodie.datasource.hive_sync.mode": "hms"}
        for key, value in {**base, **properties}.items():
            given.setProperty(key, value)
        jvm.org.apache.hudi.hive.HiveSyncTool(given, conf).syncHoodieTable()
    for line in sys.stdin:
        print(json.dumps([answer(spark, one) for one in json.loads(line)]), file=answers, flush=True)


def answer(spark, query):
    try:
        return [[str(value) for value in row] for row in spark.sql(query).collect()]
    except Exception as error:  # noqa: BLE001 - shown by the test
        return str(error)[:500] + str(error)[-3000:]


def session(job):
    from pyspark.sql import SparkSession

    opens = " ".join("--add-opens=java.base/%s=ALL-UNNAMED" % name for name in OPENED)
    options = {
        "spark.driver.memory": "1g",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC " + opens,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": job["folder"],
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.hive.metastore.uris": job["uri"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if "jar" in job:
        options |= {
            "spark.driver.extraClassPath": job["jar"],
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }
    builder = SparkSession.builder.master("local[1]").appName("catalog-oracle")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.enableHiveSupport().getOrCreate()


if __name__ == "__main__":
    main(sys.argv[1])
