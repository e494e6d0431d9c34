"""`neve simulate`: days of compaction in seconds, decided by the code of the service."""
