"""Mutation tests of the checks: solutions from the lessons' sources, and wrong answers that are generated
from them."""
