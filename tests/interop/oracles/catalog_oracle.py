#!/usr/bin/env python3
"""
Java Hudi and its Spark at a Hive Metastore, in one JVM: `catalog_oracle.py JOB.json`.

The job has `jar` (Hudi's bundle), `uri` (the metastore), `folder` (for the session's own files),
`syncs` (pairs of a table's path and properties for Hudi's HiveSyncTool) and `queries` (SQL texts).
The answer is one JSON document on standard output: `rows`, one list for each query; an error is a
text instead of a list. It needs an environment with Spark 3.5, as java_oracle.py makes it.
"""

import json
import sys

OPENED = ("java.lang", "java.nio", "sun.nio.ch")


def main(path):
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    spark = session(job)
    spark.sparkContext.setLogLevel("ERROR")
    jvm, conf = spark._jvm, spark.sparkContext._jsc.hadoopConfiguration()
    for table, properties in job["syncs"]:
        given = jvm.java.util.Properties()
        base = {"hoodie.datasource.meta.sync.base.path": table, "hoodie.datasource.hive_sync.mode": "hms"}
        for key, value in {**base, **properties}.items():
            given.setProperty(key, value)
        jvm.org.apache.hudi.hive.HiveSyncTool(given, conf).syncHoodieTable()
    print(json.dumps({"rows": [answer(spark, one) for one in job["queries"]]}))


def answer(spark, query):
    try:
        return [[str(value) for value in row] for row in spark.sql(query).collect()]
    except Exception as error:  # noqa: BLE001 - shown by the test
        return str(error)[:2000]


def session(job):
    from pyspark.sql import SparkSession

    opens = " ".join("--add-opens=java.base/%s=ALL-UNNAMED" % name for name in OPENED)
    options = {
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": job["jar"],
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC " + opens,
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.warehouse.dir": job["folder"],
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.hive.metastore.uris": job["uri"],
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").appName("catalog-oracle")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.enableHiveSupport().getOrCreate()


if __name__ == "__main__":
    main(sys.argv[1])
