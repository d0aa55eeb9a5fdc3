"""Execution of one compiled launch, from its arguments to its Outcome.

Read the files in this order:

    memory       the arrays packaged for compiled code, and their shadow memory
    launch       the execution of the blocks, and the decision whether errors need an explanation
    access_log   the replay of logged accesses to the observers
    explain      the rerun of blocks with errors in the interpreter, which produces the findings
"""
