"""effect-broker for agents that speak MCP: tools of the broker itself (`management`), and a proxy
in front of any MCP server whose changes become effects (`proxy`).

An entry point beside the command line, and as thin: all that it does goes through the SDK to the
API of a broker. It needs the extra `mcp`; nothing outside imports the library of that name but the
adapter for such servers.
"""
