"""Messages to operators, by webhook and e-mail. Needs neither the store nor the coordinator.

In reading order:

    messages   which message is due: conditions that begin and end, requests that end. Pure
    notifier   looks, sends to the targets of the settings, retries, and remembers what was sent
"""
