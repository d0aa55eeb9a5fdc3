# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A lesson small enough to test the machinery with

# %%
import os

print("quiet:", os.environ["COURSE_QUIET"], "· empty ledger:", not os.listdir(os.environ["COURSE_STATE_DIR"]))


# %% tags=["exercise"]
def add(a, b):
    """The sum."""
    # BEGIN SOLUTION 1.1
    total = a + b
    return total
    # END SOLUTION


# %% tags=["check"]
assert add(2, 3) == 5
print("✓ exercise 1.1")

# %% tags=["uses-exercise"]
[add(1, 1), add(2, 2)]

# %% tags=["gpu"]
print("no GPU here")
