"""The plan of a rewrite, derived from the assignment and the inputs' footers.

    rewrite_plan      the plan, a value for Spark's tasks
    inputs            footers of the inputs, decoded sizes, facts from metadata
    memory_budget     limits on what one task may hold
    transform_plan    the effect of the job's request on rows
    output_options    how outputs are written, and which row groups are copied

The flow: (1) The footers of all inputs are read. (2) They are compared with the store's metadata.
(3) Schema, rules, budget and output settings are derived. (4) All of it becomes one plan.
"""
