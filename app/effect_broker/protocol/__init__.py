"""The protocol in motion: ports, changes and steps. No asyncio, no driver, no engine in here."""
