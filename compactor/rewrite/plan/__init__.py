"""What one rewrite has to do, worked out from the assignment and the inputs' footers.

    rewrite_plan      the plan, a value that goes to Spark's tasks
    inputs            footers of the inputs, decoded sizes, facts from metadata
    memory_budget     what one task may hold
    transform_plan    what the request of a job does to the rows
    output_options    how outputs are written, and which row groups are copied

The flow: (1) footers of all inputs are read. (2) They are compared with what the store knows.
(3) Schema, rules, budget and output settings are worked out. (4) All of it becomes one plan.
"""
