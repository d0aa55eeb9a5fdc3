"""One compiled launch, from its arguments to its Outcome.

Read the files in this order:

    memory       the arrays that compiled code gets, with their shadow memory
    launch       the loop over the blocks, and the decision whether errors need an explanation
    access_log   the replay of logged accesses to the observers
    explain      the second run, in which the interpreter explains the blocks with errors
"""
