"""What the coordinator does to tables' storage, off the event loop.

1. A commit puts replaced files into the garbage; `garbage_collector` stamps them.
2. After their grace, and when no reader and no manifest lists them, they are deleted.
3. `manifests` publishes what engines that know no Névé should read.
4. `generations` counts each table up, and finds a store that has gone back in time.

    garbage_collector   deletes replaced files
    manifests           publishes manifests
    generations         the generation of every table
    unfinished_tables   removes tables whose creator died
    storage_access      threads with deadlines, and deletion in them; free space
"""
