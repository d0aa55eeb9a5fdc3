"""Mutation tests of the checks.

The solutions come from the lessons' sources, and wrong answers are generated from them. `survey` runs all of
them; `mutations` and `breakers` generate wrong answers in Python and Triton, `cpp` in CUDA C++.
"""
