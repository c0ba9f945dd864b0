"""Tables that nobody has seen: recipes, their making by Java Hudi, and the comparison."""
