"""The plan of a rewrite, derived from the assignment and the inputs' footers.

    rewrite_plan      the plan, a value for Spark's tasks; the effect of the request on rows
    inputs            footers of the inputs, decoded sizes, facts from metadata, output options

The flow: (1) The footers of all inputs are read. (2) They are compared with the store's metadata.
(3) Schema, rules, budget and output settings are derived. (4) All of it becomes one plan.
"""
