"""The specification that `neve simulate --example` prints."""

EXAMPLE = """\
# A specification for `neve simulate`. Sizes are bytes or texts such as "8MB" (binary), durations
# seconds or texts such as "5m". Whatever is left out has the value that is shown here, unless the
# comment says otherwise. docs/simulation.md explains every key.

[simulation]
days = 1                   # how long files arrive
seed = 1                   # the same seed gives the same run, byte for byte
sample = "10m"             # figures are taken this often; default: a 200th of the run
drain_max = "1d"           # then the run goes on without arrivals until all work is done

[[table]]
name = "events"
tablets = 20               # default: 1
keyed = true               # false: an append-only table, whose rows have times
tablet_skew = 0.6          # Zipf exponent: some tablets get more files; default 0, all alike
keys = 400_000             # keys of a tablet that updates may fall on; default 1,000,000
key_skew = 0.8             # Zipf exponent: some keys are updated more often; default 0
row_bytes = 200            # of a stored row; default 100
initial = "64MB"           # one file of each tablet at the beginning; default 0
planner = "ratio"
settings = { ratio = 3, max_files = 10, file_limit = 15 }   # as `neve table set` takes them
# options = { }            # of the planner
# tracker = "ratio"        # measures the backlog; default: the planner's own
# files = "files.json"     # begin with these: `neve table files TABLE --json`

[table.arrivals]
every = "4m"               # mean time between flushes of a tablet; or files_per_s of the table
files = 1                  # of one flush
size = "4MB"               # mean size of a file; default 8MB
size_spread = 0.5          # standard deviation of its logarithm; default 0
regular = false            # true: at equal intervals instead of by chance
updates = 0.4              # share of rows with a key that is there already; default 0
deletes = 0.02             # share of rows that are tombstones; default 0
late = 0.0                 # share of files with older rows, up to late_max (tables without a key)
daily = 0.5                # from half to one and a half of the mean rate; default 0
peak_hour = 14             # when the daily curve is highest
# recorded = "arrivals.json"   # in place of all rules above but updates and deletes: `neve record`

[[table.arrivals.burst]]
at = "6h"
for = "1h"
times = 6                  # as many files as usual; default 2

# [table.requests]         # no requests if this section is missing
# every = "1h"             # mean time between two requests for a whole tablet
# boost = 0                # added to the priority of their jobs

[cluster]
job_overhead = "0.5s"      # what each job takes in addition to its bytes
# volumes = { default = "400MB" }   # bytes per second of all jobs on a volume; default: no limit

[[cluster.group]]
name = "default"
slots = 1                  # jobs of one compactor at a time; default 4
compactors = { min = 1, max = 6 }    # default 1
slot_bytes_s = "2MB"       # input bytes that a slot rewrites per second; default 50,000,000
start = "30s"              # until a new compactor takes jobs

[cluster.autoscaler]
drain_target = "5m"        # and grow_after, grow_interval, shrink_after, shrink_interval

# [cluster.failures]       # nothing dies if this section is missing
# attempts = 0.01          # share of the attempts that die part-way
# compactor_life = "12h"   # mean time until a compactor is lost; default: none is
# restart = "60s"          # until another one is there in its place

# [control]                # no controller if this section is missing
# controller = "control-points"
# memory = "4GB"           # what it divides the backlog by

# Each variant is a run of its own; keys that it names win over those above.
[[variant]]
name = "ratio 3"

[[variant]]
name = "ratio 2"
settings = { ratio = 2 }

[[variant]]
name = "size-tiered"
planner = "size-tiered"
"""
