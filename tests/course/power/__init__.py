"""How much the checks can tell: solutions from the lessons' sources, and wrong answers made from them by
machine."""
