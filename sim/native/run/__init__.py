"""Execution of one compiled launch, from its arguments to its Outcome.

Read the files in this order:

    memory       arrays in the form that compiled code expects, with their shadow memory
    launch       run the blocks, then decide whether errors need an explanation
    access_log   replay logged accesses to the observers
    explain      rerun blocks with errors in the interpreter, which reports the findings
"""
