"""New tables: recipes, their creation by Java Hudi, and the comparison."""
