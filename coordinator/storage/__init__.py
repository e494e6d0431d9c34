"""Work of the coordinator on the storage of tables, in threads outside the event loop.

1. A commit adds replaced files to the garbage; `garbage_collector` stamps them.
2. After the grace period, and once no reader and no manifest lists them, they are deleted.
3. `manifests` publishes the manifests that other engines read.

    garbage_collector   deletes replaced files, and tables whose creator died
    manifests           publishes manifests
    flushes             flushes buffered rows by age, size and memory
"""
