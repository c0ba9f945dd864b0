"""
SQL on Hudi tables without a jar: Spark parses each statement, hoodoo runs those on its tables.

``statements.py`` receives the texts of ``SparkSession.sql``; ``names.py`` finds tables by name in
Spark's catalog; ``changes.py`` runs INSERT, UPDATE, DELETE and MERGE; ``definitions.py`` and
``alterations.py`` run CREATE, ALTER, DROP and SHOW; ``call.py`` runs CALL; ``declared.py`` has
what only the catalog keeps of columns; ``catalyst.py`` converts Spark's objects.
"""
